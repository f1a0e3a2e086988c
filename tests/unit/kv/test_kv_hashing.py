"""Prefix hashes: golden vectors, chaining, and what must not collide."""

from __future__ import annotations

import struct
from hashlib import sha256

import pytest

from common.kv.hashing import HashChain, block_hashes, namespace, prefix_root

GOLDEN_ROOT = "4474fdd4ad4fe2e0ff15ebc0030df46e0b26dda09ec3b270ea5bff38029ce032"
GOLDEN_SALTED_ROOT = "ecc5291a1c0b11ca2df76a7b619fa12b2d4622da4386b902e1538a74dda5fb17"
GOLDEN_HASHES = [
    "a1256ef86ed65007d25081cf8f990101ad705aea65e3cb967fd703fa0c43c9b7",
    "0e16e254789330e552a52fd4a1920a27e0465baa126f7bbf165e2ad7bf6cbb4e",
]
GOLDEN_NAMESPACE = "f67b6402c327925a6c2737d3969afa77a23c54ed7f06ceae379031ef90c51d14"


def test_golden_vectors() -> None:
    """Other processes and stored blocks depend on these bytes: a change here is a new schema version."""
    root = prefix_root(4, "")
    assert root.hex() == GOLDEN_ROOT
    assert prefix_root(4, "tenant", "adapter-1").hex() == GOLDEN_SALTED_ROOT
    assert [h.hex() for h in block_hashes(root, [0, 1, 2, 3, 49151, 5, 6, 2**32 - 1, 8], 4)] == GOLDEN_HASHES
    assert namespace("model", "0", "cpu-fp32", "bf16", b"\x01\x02").hex() == GOLDEN_NAMESPACE


def test_a_block_hash_is_sha256_over_the_parent_and_little_endian_ids() -> None:
    root = prefix_root(2, "")
    first = sha256(root + struct.pack("<2I", 7, 70000)).digest()
    second = sha256(first + struct.pack("<2I", 1, 2)).digest()
    assert block_hashes(root, [7, 70000, 1, 2], 2) == [first, second]


def test_the_root_is_built_from_length_prefixed_fields() -> None:
    fields = [b"pando-prefix", struct.pack("<I", 1), struct.pack("<I", 16), b"salt", b"lora"]
    packed = b"".join(struct.pack("<I", len(f)) + f for f in fields)
    assert prefix_root(16, "salt", "lora") == sha256(packed).digest()


def test_different_settings_have_different_roots() -> None:
    roots = [prefix_root(16, ""), prefix_root(8, ""), prefix_root(16, "a"), prefix_root(16, "", "a")]
    roots += [prefix_root(16, "ab", "c"), prefix_root(16, "a", "bc"), prefix_root(16, "abc")]
    assert len(set(roots)) == len(roots)


def test_different_namespaces_differ_in_every_field() -> None:
    base = ["model", "1", "numerics", "bf16", "layout"]
    names = {namespace(*base)}
    for i in range(5):
        names.add(namespace(*[*base[:i], base[i] + "x", *base[i + 1 :]]))
    names.add(namespace("mode", "l1", "numerics", "bf16", "layout"))
    assert len(names) == 7
    assert namespace(b"model", b"1", b"numerics", b"bf16", b"layout") == namespace(*base)


def test_only_full_blocks_have_a_hash() -> None:
    root = prefix_root(4, "")
    assert block_hashes(root, [], 4) == []
    assert block_hashes(root, [1, 2, 3], 4) == []
    assert block_hashes(root, [1, 2, 3, 4, 5], 4) == block_hashes(root, [1, 2, 3, 4], 4)


def test_equal_blocks_after_different_prefixes_differ() -> None:
    root = prefix_root(1, "")
    assert block_hashes(root, [1, 9], 1)[1] != block_hashes(root, [2, 9], 1)[1]
    assert len(set(block_hashes(root, [5, 5, 5, 5], 1))) == 4


def test_hashing_goes_on_from_the_hash_of_a_block() -> None:
    root = prefix_root(2, "")
    whole = block_hashes(root, list(range(8)), 2)
    assert block_hashes(whole[1], list(range(4, 8)), 2) == whole[2:]


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_a_chain_equals_hashing_at_once(block_size: int) -> None:
    root, tokens = prefix_root(block_size, ""), list(range(50))
    chain = HashChain(root, block_size, tokens[:20])
    chain.extend(tokens[20:29])
    for token in tokens[29:]:
        chain.append(token)
        assert chain.hashes == block_hashes(root, tokens[: chain.num_tokens], block_size)
    assert chain.num_tokens == 50


def test_a_chain_trusts_known_hashes_and_goes_on_from_them() -> None:
    root, tokens = prefix_root(4, ""), list(range(11))
    whole = block_hashes(root, [*tokens, 11], 4)
    chain = HashChain(root, 4, tokens, whole[:1])
    chain.append(11)
    assert chain.hashes == whole
    foreign = HashChain(root, 4, tokens, [bytes(32)])
    assert foreign.hashes[0] == bytes(32) and foreign.hashes[1] != whole[1]


def test_a_chain_refuses_what_cannot_be() -> None:
    with pytest.raises(AssertionError, match="2 hashes for 7 tokens"):
        HashChain(prefix_root(4, ""), 4, list(range(7)), [bytes(32)] * 2)
    with pytest.raises(AssertionError, match="root of 3 bytes"):
        HashChain(b"abc", 4)
    with pytest.raises(struct.error):
        block_hashes(prefix_root(1, ""), [-1], 1)
