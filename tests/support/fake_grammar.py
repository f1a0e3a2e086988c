"""Text that fits a grammar, for a router without a model: the smallest thing that obeys it."""

from __future__ import annotations

import json
from typing import Any

from common.base.errors import InvalidRequest
from pando.v1 import types_pb2

Json = Any


def sample(grammar: types_pb2.Grammar) -> str:
    """A text that the grammar admits.

    Raises:
        InvalidRequest: no sense, a kind that this fake does not know, or a schema with the keyword `x-refuse`.
    """
    kind = grammar.WhichOneof("kind")
    if "x-refuse" in grammar.json_schema + grammar.structural_tag:
        raise InvalidRequest("x-refuse is not supported", reason="invalid_grammar", param="response_format")
    if kind == "json_schema":
        return _dumps(_loads(grammar.json_schema))
    if kind == "choices" and grammar.choices.values:
        return grammar.choices.values[0]
    if kind == "structural_tag":
        structures = _structures(grammar.structural_tag)
        return "Well. " + "\n".join(f"{one['begin']}{_dumps(one['schema'])}{one['end']}" for one in structures)
    raise InvalidRequest(f"the fake has no {kind}", param="response_format")


def _loads(text: str) -> Json:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest("not JSON", param="response_format") from error


def _structures(text: str) -> list[dict[str, Json]]:
    tag = _loads(text)
    found = tag.get("structures") if isinstance(tag, dict) else None
    whole = {"begin", "schema", "end"}
    if not isinstance(found, list) or not all(isinstance(one, dict) and whole <= one.keys() for one in found):
        raise InvalidRequest("not a structural tag", param="response_format")
    return found


def _dumps(schema: Json) -> str:
    return json.dumps(instance(schema, schema), ensure_ascii=False)


def instance(schema: Json, root: Json, depth: int = 0) -> Json:
    """A value that a schema admits; references are looked up in `root`."""
    if depth > 20 or not isinstance(schema, dict):
        return {}
    if isinstance(schema.get("$ref"), str):
        return instance(_resolve(root, schema["$ref"]), root, depth + 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), list) and schema[word]:
            return instance(schema[word][0], root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    return _typed(schema, root, depth)


def _typed(schema: Json, root: Json, depth: int) -> Json:
    kind = schema.get("type", "object")
    if kind == "object":
        properties = schema.get("properties")
        items = properties.items() if isinstance(properties, dict) else ()
        return {name: instance(inner, root, depth + 1) for name, inner in items}
    if kind == "array":
        return [instance(schema.get("items", {"type": "null"}), root, depth + 1)]
    return {"string": 'a "b" {c} \\ 日', "integer": 7, "number": 1.5, "boolean": True}.get(str(kind))


def _resolve(root: Json, reference: str) -> Json:
    found = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(step, {}) if isinstance(found, dict) and step else found
    return found
