"""Scripts: what may follow what, and what the model is asked to go on with."""

from __future__ import annotations

import pytest

from common.base.errors import InvalidRequest, Unsupported
from pando.lang.script import Message, Script


def test_growing_makes_new_scripts() -> None:
    start = Script()
    script = start.begin("user").append("a").append("b").end("user").begin("assistant")
    assert start == Script() and start.append("") is start
    assert script.messages == (Message("user", "ab"), Message("assistant")) and script.open and script.is_chat
    assert script.plain() == "user: ab\nassistant: "
    assert Script().append("x").append("y").plain() == "xy"


def test_an_empty_answer_is_opened_by_the_template_a_begun_one_is_continued() -> None:
    asked = Script().begin("user").append("a").end("user").begin("assistant")
    chat = asked.chat()
    assert not chat.continue_final_message and list(chat.messages) == [{"role": "user", "content": "a"}]
    chat = asked.append("So").chat()
    assert chat.continue_final_message and chat.messages[-1] == {"role": "assistant", "content": "So"}


def test_what_the_model_cannot_go_on_with() -> None:
    with pytest.raises(InvalidRequest, match="begin a conversation"):
        Script().begin("assistant").chat()
    with pytest.raises(Unsupported):
        Script().begin("user").chat()


@pytest.mark.parametrize(
    ("script", "step"),
    [
        (Script().begin("user"), lambda s: s.begin("assistant")),
        (Script().begin("user"), lambda s: s.end("assistant")),
        (Script(), lambda s: s.append("\ud83d")),
        (Script(), lambda s: s.end("user")),
        (Script(text="x"), lambda s: s.begin("user")),
        (Script().begin("user").end("user"), lambda s: s.append("loose")),
    ],
)
def test_misplaced(script: Script, step: object) -> None:
    with pytest.raises(InvalidRequest):
        step(script)  # type: ignore[operator]
