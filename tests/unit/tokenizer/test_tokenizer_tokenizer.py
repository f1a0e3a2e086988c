"""Token bytes, ids, decoding, refusals."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

import pytest
import tokenizers

from common.base.errors import InvalidRequest
from common.base.model_config import ModelError
from common.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_vocab import tiny_tokenizer, tiny_vocab

TEXTS = ["", "hello the  a\n\n", "é日🙂👩‍👩‍👧", "\x00\x7f\xa0\xad", "مرحبا e\u0301", "x<|end|>y<tool>z"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return tiny_tokenizer(tmp_path)


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_spell_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special=True)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.decode(ids, skip_special=False) == text
    assert tokenizer.decode(ids, skip_special=True) == text.replace("<|end|>", "")


@pytest.mark.parametrize("text", TEXTS)
def test_decode_agrees_with_the_library(tmp_path: Path, text: str) -> None:
    ours = tiny_tokenizer(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = ours.encode(text, add_special=False)
    assert ids == library.encode(text, add_special_tokens=False).ids
    for cut in range(len(ids) + 1):
        for skip in (True, False):
            assert ours.decode(ids[:cut], skip) == library.decode(ids[:cut], skip_special_tokens=skip)


def test_every_byte_has_a_token(tokenizer: Tokenizer) -> None:
    single = {tokenizer.token_bytes(index) for index in range(2, 258)}
    assert single == {bytes([byte]) for byte in range(256)}


def test_special_and_unknown_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_ids == {0, 1}
    assert tokenizer.encode("a<|end|>", add_special=False)[-1] == 0
    assert tokenizer.token_bytes(0) == b"<|end|>"
    assert tokenizer.vocab_size == len(tiny_vocab().tokens)
    assert tokenizer.token_bytes(tokenizer.vocab_size) == tokenizer.token_bytes(-1) == b""


def test_bos_only_when_asked_and_wanted(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path, add_bos=True)
    plain = tokenizer.encode("hello", add_special=False)
    assert tokenizer.encode("hello", add_special=True) == [1, *plain]
    assert tiny_tokenizer(tmp_path, add_bos=False).encode("hello", add_special=True) == plain
    assert tiny_tokenizer(tmp_path, pre="llama-bpe").encode("", add_special=True) == [1]


def test_lone_surrogate_is_the_callers_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="Unicode"):
        tokenizer.encode("a\ud800", add_special=False)


def test_truncation_and_padding_in_the_file_are_ignored(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    raw = json.loads(file.read_text("utf-8"))
    raw["truncation"] = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(raw))
    assert len(Tokenizer.load(tmp_path).encode("xyz", add_special=False)) == 3


def test_threads_get_the_same_ids(tokenizer: Tokenizer) -> None:
    texts = [f"hello the {n} é日" * 20 for n in range(32)]
    expected = [tokenizer.encode(text, False) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda text: tokenizer.encode(text, False), texts * 4)) == expected * 4


def test_missing_damaged_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is missing"):
        Tokenizer.load(tmp_path)
    file = tmp_path / "tokenizer.json"
    for content in (b"", b"{}", b"\xff", b'{"model": 3}'):
        file.write_bytes(content)
        with pytest.raises(ModelError, match=r"tokenizer\.json"):
            Tokenizer.load(tmp_path)
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.decoder = tokenizers.decoders.Metaspace()
    inner.save(str(file))
    with pytest.raises(ModelError, match="not byte-level"):
        Tokenizer.load(tmp_path)


def test_a_token_outside_the_alphabet_means_itself() -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({"Ġa": 0, "a b": 1, "日": 2, "é": 3}, []))
    inner.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = Tokenizer(inner)
    assert [tokenizer.token_bytes(index) for index in range(4)] == [b" a", b"a b", "日".encode(), b"\xe9"]


def test_a_long_text_stops_nobody_else(tokenizer: Tokenizer) -> None:
    begun, done = Event(), Event()

    def encode() -> None:
        begun.set()
        tokenizer.encode("1 " * 300_000, add_special=False)
        done.set()

    thread = Thread(target=encode)
    thread.start()
    begun.wait()
    num_turns = 0
    while not done.wait(0.001):
        num_turns += 1
    thread.join()
    assert num_turns > 5, f"{num_turns} turns of this thread while another one encoded"


@pytest.mark.parametrize("text", [*TEXTS, "  " * 50, "\n\n", "hel" * 40, "<tool>" * 9, "\U0001f642" * 30])
def test_a_text_has_at_least_min_tokens(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.min_tokens(text) <= len(tokenizer.encode(text, add_special=False))
    assert tokenizer.min_tokens(text * 1000) >= len(text.encode()) * 100


def test_min_tokens_promises_nothing_where_bytes_may_vanish(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path)
    inner = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(inner).min_tokens("x" * 100) > 0
    inner.normalizer = tokenizers.normalizers.NFC()
    assert Tokenizer(inner).min_tokens("x" * 100) == 0
    stripping = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    stripping.add_tokens([tokenizers.AddedToken("<greedy>", rstrip=True)])
    assert Tokenizer(stripping).min_tokens("x" * 100) == 0


def test_min_tokens_leaves_out_bytes_that_have_no_token(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    vocab["~gone~"] = vocab.pop("~")
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)))
    assert tokenizer.encode("~" * 1000, add_special=False) == []
    assert tokenizer.min_tokens("~" * 1000) == 0
    assert 0 < tokenizer.min_tokens("~" * 1000 + "x") <= len(tokenizer.encode("~" * 1000 + "x", add_special=False))
