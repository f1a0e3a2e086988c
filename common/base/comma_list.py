"""Comma lists in settings and on command lines. Imports nothing, so that anybody may."""

from __future__ import annotations


def split_list(value: str) -> list[str]:
    """The parts of a comma list, without blanks."""
    return [part.strip() for part in value.split(",") if part.strip()]


def comma_list(value: str, known: tuple[str, ...]) -> str:
    """For validators: `value` if all its parts are known; raises ValueError that names the first which is not."""
    unknown = [part for part in split_list(value) if part not in known]
    if unknown:
        raise ValueError(f"unknown {unknown[0]!r}; known: {', '.join(known)}")
    return value
