"""The names of blocks are those of the golden file, computed twice: by the code, and by hand from its description.

What is named is also what tells tenants, models and stores apart: a change here makes every cache start empty, or, far
worse, lets one tenant find another's blocks.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.cache.header import make_header
from common.cache.l3 import BlockKey
from common.cache.sealer import Sealer
from common.kv.hashing import HashChain, block_hashes, namespace, partial_name, prefix_root
from common.transport.tag import Tagger
from tests.support.golden_hashes import GOLDEN, TENANTS, compute

TABLES: dict[str, list[dict[str, Any]]] = json.loads(GOLDEN.read_text("utf-8"))


def tagger(key: str) -> Tagger:
    return Tagger(key.encode() or None)


def block_key(row: dict[str, Any]) -> BlockKey:
    return BlockKey(bytes.fromhex(TABLES["namespaces"][0]["namespace"]), bytes.fromhex(row["name"]), row["part"])


def computed(table: str, row: dict[str, Any]) -> str | list[str]:
    """What the code says to a row, in hex."""
    match table:
        case "prefix_roots":
            return prefix_root(row["block_size"], row["salt"], row["adapter"]).hex()
        case "block_hashes":
            root = prefix_root(row["block_size"], row["salt"])
            hashes = block_hashes(root, row["ids"], row["block_size"])
            assert HashChain(root, row["block_size"], row["ids"]).hashes == hashes
            return [h.hex() for h in hashes]
        case "partial_names":
            return partial_name(bytes.fromhex(row["parent"]), row["ids"]).hex()
        case "namespaces":
            return namespace(*row["fields"]).hex()
        case "stored_spaces":
            return Sealer(tagger(row["key"]), 1).space(bytes.fromhex(row["namespace"])).hex()
        case "tags":
            key = block_key(row)
            payload = bytes.fromhex(row["payload"])
            return tagger(row["key"]).tag(key.namespace, key.prefix_hash, payload, key.part).hex()
        case _:
            payload = memoryview(bytes.fromhex(row["payload"]))
            return make_header(block_key(row), payload, tagger(row["key"])).hex()


def result(row: dict[str, Any]) -> str | list[str]:
    """The last column of a row: what came of the others."""
    value: str | list[str] = list(row.values())[-1]
    return value


@pytest.mark.parametrize("table", TABLES)
def test_the_code_says_what_the_file_says(table: str) -> None:
    assert len(TABLES[table]) >= 4
    for row in TABLES[table]:
        assert computed(table, row) == result(row), row


def test_the_file_says_what_the_description_says() -> None:
    assert json.loads(json.dumps(compute())) == TABLES


@pytest.mark.parametrize("table", TABLES)
def test_different_inputs_have_different_names(table: str) -> None:
    results = [name for row in TABLES[table] for name in _each(result(row))]
    assert len(set(results)) == len(results), f"{len(results) - len(set(results))} names of {table} meet"


def _each(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def test_salt_and_adapter_do_not_run_together() -> None:
    assert {("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc")} < set(TENANTS)
    ids = list(range(64))
    paths = [block_hashes(prefix_root(16, salt, adapter), ids, 16) for salt, adapter in TENANTS]
    assert len({name for path in paths for name in path}) == len(TENANTS) * 4, "two tenants share a block"
