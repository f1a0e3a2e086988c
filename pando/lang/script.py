"""The prompt that a program has written so far. Pure and immutable, so that a fork is a reference.

A script is either plain text or a conversation::

    text     "Q: ...\\nA: ..."
    messages [system ...] [user ...] [assistant ...        <- open: text and calls of the model go here

The model answers at the end of plain text, or inside an open message of the assistant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from common.base.errors import InvalidRequest, Unsupported
from pando.client.types import Chat


@dataclass(slots=True, frozen=True)
class Message:
    """One message so far."""

    role: str
    content: str = ""


@dataclass(slots=True, frozen=True)
class Script:
    """See the module.

    Attributes:
        text: plain text; "" in a conversation.
        messages: of a conversation; none in plain text.
        open: the last message has not ended.
    """

    text: str = ""
    messages: tuple[Message, ...] = ()
    open: bool = False

    @property
    def is_chat(self) -> bool:
        """Whether it is a conversation."""
        return bool(self.messages)

    def append(self, text: str) -> Script:
        """The script with more text. Raises InvalidRequest between two messages, and for text that is no Unicode."""
        if not text:
            return self
        if not _is_unicode(text):
            raise InvalidRequest("text must be valid Unicode: it has half of a surrogate pair", param="prompt")
        if not self.is_chat:
            return replace(self, text=self.text + text)
        if not self.open:
            raise InvalidRequest("in a conversation text must be inside system(...), user(...) or assistant(...)")
        last = self.messages[-1]
        return replace(self, messages=(*self.messages[:-1], replace(last, content=last.content + text)))

    def begin(self, role: str) -> Script:
        """The script with a new open message. Raises InvalidRequest inside of one, or after plain text."""
        if self.open:
            raise InvalidRequest(f"{role}(...) begins inside {self.messages[-1].role}(...): roles do not nest")
        if self.text:
            raise InvalidRequest(f"{role}(...) comes after plain text: a program has either messages or plain text")
        return replace(self, messages=(*self.messages, Message(role)), open=True)

    def end(self, role: str) -> Script:
        """The script with its message closed. Raises InvalidRequest when another or none is open."""
        if not self.open or self.messages[-1].role != role:
            raise InvalidRequest(f"{role} ends, but it is not open")
        return replace(self, open=False)

    def chat(self) -> Chat:
        """The conversation as the model is asked to go on with it.

        Raises:
            Unsupported: the last message is not an open one of the assistant.
        """
        if not self.open or self.messages[-1].role != "assistant":
            raise Unsupported("the model answers inside assistant(...); write s += assistant(gen(...))")
        begun = self.messages if self.messages[-1].content else self.messages[:-1]
        if not begun:
            raise InvalidRequest("the assistant cannot begin a conversation: add system(...) or user(...) before")
        as_dicts = [{"role": message.role, "content": message.content} for message in begun]
        return Chat(as_dicts, continue_final_message=begun is self.messages)

    def plain(self) -> str:
        """For people: the text, or the messages with their roles in front."""
        if not self.is_chat:
            return self.text
        return "\n".join(f"{message.role}: {message.content}" for message in self.messages)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
