"""A tiny model directory for tests that start real processes: no real weights, ready in a second, steps under 2 ms.

The folder is what `--model-path` takes: config.json, model.safetensors, tokenizer.json, tokenizer_config.json with a
chat template. The model is a random two-layer Llama over the byte-level vocabulary of `tests.support.tiny_vocab`
(fewer than 1,000 ids, 4,096 positions), the same bits every time.

What its output looks like, so that tests can rely on it: greedy output depends on the whole prompt and does not fall
into a loop at once; it is valid UTF-8, because tokens that are only a part of a character are not drawn; it never ends
by itself, because the end token is not drawn either. Ask for an end with `max_tokens`, a stop string,
`stop_token_ids`, or `logit_bias={END: 100}`.

As a program: `python -m tests.support.tiny_model DIR` writes the folder.
"""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from common.base.model_config import ModelConfig, RopeConfig
from common.base.model_tensors import HEAD
from common.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_models import random_weights
from tests.support.tiny_vocab import tiny_vocab, write_tokenizer

END, START = 0, 1
"""Ids of <|end|> (end of sequence) and <|start|>."""

MAX_POSITION = 4096
_HEAD_SCALE = 4.0
_ATTENTION_SCALE = 3.0
_CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=0,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    max_position=MAX_POSITION,
    tie_word_embeddings=False,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    bos_token_id=START,
    eos_token_ids=(END,),
    dtype="float32",
    rope=RopeConfig(),
)


def write_tiny_model(path: Path, seed: int = 0) -> None:
    """Write the model directory into `path`, made if it is missing. Another `seed` is another model (and digest)."""
    path.mkdir(parents=True, exist_ok=True)
    vocab = tiny_vocab()
    write_tokenizer(path, vocab)
    config = replace(_CONFIG, vocab_size=len(vocab.tokens))
    (path / "config.json").write_text(json.dumps(_config_json(config)), encoding="utf-8")
    weights = random_weights(config, seed=seed)
    _listen_to_the_past(weights)
    _silence_partial_tokens(weights[HEAD], Tokenizer.load(path))
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


@functools.cache
def tiny_model_dir() -> Path:
    """The model directory of this test session, written on first use and removed when the process ends."""
    path = Path(tempfile.mkdtemp(prefix="pando-tiny-model-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    write_tiny_model(path)
    return path


def _listen_to_the_past(weights: dict[str, Tensor]) -> None:
    """Make attention sharp and strong, so that the next token hangs on all before it and not on the last one alone."""
    for name, tensor in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight", "o_proj.weight")):
            tensor.mul_(_ATTENTION_SCALE)


def _silence_partial_tokens(head: Tensor, tokenizer: Tokenizer) -> None:
    """Give ids that are special or no whole characters a logit of 0, far below the best of the others."""
    head.mul_(_HEAD_SCALE)
    for token in range(head.shape[0]):
        text = tokenizer.token_bytes(token)
        if token in (END, START) or not _is_text(text):
            head[token] = 0


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _config_json(config: ModelConfig) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tie_word_embeddings,
        "rope_theta": config.rope.theta,
        "hidden_act": "silu",
        "torch_dtype": config.dtype,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }


if __name__ == "__main__":
    write_tiny_model(Path(sys.argv[1]))
