"""JSON that came as text inside a request, held to the standard: Python's reader takes NaN and halves of surrogate
pairs, which no one can write again. Pure."""

from __future__ import annotations

import json
from typing import Any


def load_strict(text: str) -> Any:
    """The data of a JSON text; whole numbers keep all their digits.

    Raises:
        ValueError: it is not JSON, has a string that is no Unicode, or nests too deeply to be read.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair") from error
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")
