"""Whether sent tokens end a request: alike to a worker, for length, stop tokens and stop strings."""

from __future__ import annotations

import pytest

from common.tokenizer.tokenizer import Tokenizer
from pando.v1 import inference_pb2, types_pb2
from services.router.closing import Closing, closing
from services.router.convert import wish_from_pb
from services.router.job import Job
from services.router.member import Identity
from tests.support.tiny_vocab import tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def job(max_tokens: int = 100, **sampling: object) -> Job:
    message = inference_pb2.GenerateRequest(sampling=types_pb2.SamplingParams(**sampling))  # type: ignore[arg-type]
    return Job(
        wish=wish_from_pb(message),
        request_id="r",
        prompt_ids=[1],
        max_tokens=max_tokens,
        seed=1,
        eos_ids=frozenset({0}),
        kv=Identity(b"", "", 64, 16),
        hashes=(),
        text_offset=0,
        deadline_s=0,
    )


def test_what_goes_on_has_no_closing(tokenizer: Tokenizer) -> None:
    assert closing(job(), tokenizer, tokenizer.encode("hello", False), 0) is None


def test_length_gives_the_text_that_was_held_back(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("語", False)
    assert len(ids) == 3, "one byte a token"
    assert closing(job(max_tokens=3), tokenizer, ids, 0) == Closing(False, "", "語")
    assert closing(job(max_tokens=2), tokenizer, ids[:2], 0) == Closing(False, "", "\ufffd")
    held = tokenizer.encode("abcST", False)
    asked = job(max_tokens=len(held), stop=("STOP",))
    assert closing(asked, tokenizer, held, 3) == Closing(False, "", "ST")


def test_stop_tokens(tokenizer: Tokenizer) -> None:
    a = tokenizer.encode("a", False)[0]
    assert closing(job(), tokenizer, [a, 0], 1) == Closing(True, "", "")
    assert closing(job(ignore_eos=True), tokenizer, [a, 0], 1) is None
    assert closing(job(min_tokens=2), tokenizer, [a, 0], 1) is None
    assert closing(job(min_tokens=1), tokenizer, [a, 0], 1) == Closing(True, "", "")
    assert closing(job(stop_token_ids=(a,)), tokenizer, [a, a], 1) == Closing(True, "", "a")


def test_stop_strings(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("abcSTOP", False)
    assert closing(job(stop=("STOP",)), tokenizer, ids, 2) == Closing(True, "STOP", "c")
    kept = job(stop=("STOP",), include_stop_str=True)
    assert closing(kept, tokenizer, ids, 3) == Closing(True, "STOP", "STOP")
