"""docs/openai.md names every field that a request may have, and every limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from common.base.limits import LimitsConfig
from services.gateway.grammar_fields import GrammarFields
from services.gateway.openai_types import ChatRequest, CompletionRequest
from services.gateway.responses_types import ResponsesRequest

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "openai.md").read_text(encoding="utf-8")


def missing(model: type[BaseModel], text: str) -> set[str]:
    names = set(model.model_fields) - set(GrammarFields.model_fields)
    return {name for name in names if f"`{name}" not in text and f"limits.{name}" not in text}


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest, ResponsesRequest, LimitsConfig])
def test_every_field_is_documented(model: type[BaseModel]) -> None:
    assert missing(model, TEXT) == set()


def test_constraints_are_documented_in_their_own_place() -> None:
    text = (DOCS / "structured_output.md").read_text(encoding="utf-8")
    assert {name for name in GrammarFields.model_fields if f"`{name}" not in text} == set()


def test_a_missing_field_is_seen() -> None:
    assert missing(ChatRequest, TEXT.replace("`verbosity", "")) == {"verbosity"}
