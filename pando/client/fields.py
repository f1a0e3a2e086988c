"""What callers give -> fields of messages, with errors in the callers' words: protobuf's speak of protobuf. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from common.base.errors import InvalidRequest

_KINDS = {
    FieldDescriptor.TYPE_BOOL: "true or false",
    FieldDescriptor.TYPE_STRING: "text in valid Unicode",
    FieldDescriptor.TYPE_FLOAT: "a number",
    FieldDescriptor.TYPE_DOUBLE: "a number",
    FieldDescriptor.TYPE_INT32: f"a whole number from {-(2**31)} to {2**31 - 1}",
    FieldDescriptor.TYPE_UINT32: f"a whole number from 0 to {2**32 - 1}",
    FieldDescriptor.TYPE_UINT64: f"a whole number from 0 to {2**64 - 1}",
}


def what_fits(field: Any) -> str:
    """What may be in the field of this descriptor, which is of plain values, or a list or mapping of them."""
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, value = (what_fits(inner.fields_by_name[name]) for name in ("key", "value"))
        return f"a mapping of {key.removeprefix('a ')} to {value.removeprefix('a ')}"
    kind = _KINDS[field.type]
    return f"a list, each entry {kind}" if field.is_repeated else kind


def put(message: Any, name: str, value: Any, param: str = "") -> None:
    """Set a field of plain values.

    Raises:
        InvalidRequest: the field cannot hold the value; `param` is what the caller knows the field by.
    """
    field = type(message).DESCRIPTOR.fields_by_name[name]
    try:
        if field.is_repeated and isinstance(value, str | bytes):
            raise TypeError("a text is no list, though it could be read as one")
        message.MergeFrom(type(message)(**{name: value}))
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(f"{param or name} must be {what_fits(field)}", param=param or name) from error


def json_text(value: Any, param: str) -> str:
    """A value as JSON. Raises InvalidRequest when JSON has no such thing."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{param} is no JSON: {error}", param=param) from error


def content_text(content: Any) -> str:
    """A message's content: None, text, or text parts, which are joined as they are. Raises InvalidRequest."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, Sequence) and not isinstance(content, bytes) else [None]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("a message's content must be text, or a list of parts of type text", param="messages")
    return "".join(map(str, texts))
