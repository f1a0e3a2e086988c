"""The engine against transformers on SmolLM2's real weights and real text, teacher-forced, in fp32 on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from common.engine.loader import EngineConfig, load_runner
from tests.support.engine_steps import forward_logits, run_step, sampled_step

MODEL = Path("models/SmolLM2-135M-Instruct")
TEXTS = [
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + ",
    "In 1969, two people walked on the Moon; 12 did so by 1972. The third mission, Apollo 13, failed because",
]
NUM_BLOCKS = 16


@pytest.fixture(scope="module")
def reference() -> transformers.PreTrainedModel:
    """transformers' model in fp32, from the same directory."""
    if not MODEL.is_dir():
        pytest.skip(f"{MODEL} is not imported (make setup)")
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


@pytest.mark.parametrize("backend", ["cpu", "torch_ref"])
def test_logits_equal_transformers(reference: transformers.PreTrainedModel, backend: str) -> None:
    runner = load_runner(EngineConfig(MODEL, "fp32", attention_backend=backend, num_threads=2))
    runner.attach_pool(memoryview(bytearray(NUM_BLOCKS * runner.layout.block_bytes)), NUM_BLOCKS)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        logits = forward_logits(runner, ids, range(NUM_BLOCKS))
        with torch.inference_mode():
            expected = reference(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(logits, expected, atol=2e-3, rtol=0)
        best = expected.topk(2).values
        decided = best[:, 0] - best[:, 1] > 1e-3
        assert torch.equal(logits.argmax(-1)[decided], expected.argmax(-1)[decided])


def test_int8_kv_has_the_same_bits_in_any_chunks_and_blocks() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    ids = [i for text in TEXTS for i in tokenizer.encode(text).ids][:70]

    def last_digest(block_size: int, chunk: int) -> bytes | None:
        config = EngineConfig(MODEL, "auto", "int8", block_size=block_size, num_threads=2)
        runner = load_runner(config)
        blocks = -(-len(ids) // block_size)
        runner.attach_pool(memoryview(bytearray(b"\xff") * (blocks * runner.layout.block_bytes)), blocks)
        for start in range(0, len(ids), chunk):
            result = run_step(runner, sampled_step("r", ids[start : start + chunk], start, range(blocks)))
        return result.sampled["r"].digest

    cold = last_digest(16, 1)
    assert cold is not None
    assert {last_digest(16, 70), last_digest(64, 33), last_digest(1, 64)} == {cold}
