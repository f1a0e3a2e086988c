"""Prompt -> token ids: the model's tokenizer and chat template, off the event loop when the text is long.

The threads are bounded; short texts run where they are, since a hop to a thread costs more than they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from common.base.errors import InvalidRequest
from common.base.model_config import ModelConfig, load_model_config
from common.tokenizer.chat_template import ChatTemplate
from common.tokenizer.tokenizer import Tokenizer
from services.router.job import Chat, Prompt
from services.router.tool_prompt import knows_tools, uses_tools, without_tools
from services.router.validation import CONTEXT_LENGTH_EXCEEDED, num_chat_chars

T = TypeVar("T")
IDS_PER_CHAR = 16
"""Token ids that are hashed in about the time that one character is tokenised in."""


@dataclass(slots=True, frozen=True)
class Model:
    """What the router knows of the served model.

    Attributes:
        template: None when the model has no chat template.
        knows_tools: the template shows tools, calls and results; else they are written into the messages.
    """

    name: str
    config: ModelConfig
    tokenizer: Tokenizer
    template: ChatTemplate | None
    knows_tools: bool = False

    @classmethod
    def load(cls, path: Path, name: str) -> Model:
        """Read a model directory; an empty `name` is replaced by the folder's. Raises ModelError."""
        config = load_model_config(path)
        template = ChatTemplate.load(path)
        known = template is not None and knows_tools(template)
        return cls(name or path.resolve().name, config, Tokenizer.load(path), template, known)

    def render(self, chat: Chat) -> str:
        """The text of a conversation. Raises InvalidRequest."""
        if self.template is None:
            raise InvalidRequest("this model has no chat template", reason="no_chat_template", param="messages")
        if not self.knows_tools and uses_tools(chat):
            chat = without_tools(chat)
        return self.template.render(
            chat.messages,
            chat.tools,
            add_generation_prompt=not chat.continue_final_message,
            continue_final_message=chat.continue_final_message,
            **chat.template_kwargs,
        )

    def text_of(self, prompt: str | Chat) -> str:
        """The text that is tokenised. Raises InvalidRequest."""
        return self.render(prompt) if isinstance(prompt, Chat) else prompt

    def token_ids(self, prompt: Prompt, add_special: bool = True, max_tokens: int | None = None) -> list[int]:
        """The tokens of a prompt; a rendered chat brings its own special tokens.

        Raises:
            InvalidRequest: the template refuses, or the text surely has more than `max_tokens` tokens.
        """
        if isinstance(prompt, list):
            return prompt
        text = self.text_of(prompt)
        least = self.tokenizer.min_tokens(text)
        if max_tokens is not None and least > max_tokens:
            raise InvalidRequest(
                f"This model's maximum context length is {max_tokens} tokens, "
                f"but the request has at least {least} prompt tokens.",
                reason=CONTEXT_LENGTH_EXCEEDED,
                param="messages" if isinstance(prompt, Chat) else "prompt",
            )
        return self.tokenizer.encode(text, add_special and isinstance(prompt, str))


class PromptPool:
    """Threads for work on prompts. Lives on one event loop; close it when done."""

    def __init__(self, num_threads: int, inline_chars: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")
        self._inline_chars = inline_chars

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Do `work` on a prompt of `size` characters or tokens, here or in a thread."""
        if size <= self._inline_chars:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Wait for running work and end the threads."""
        self._executor.shutdown()


def prompt_size(prompt: Prompt) -> int:
    """Characters of a prompt: how much work it will be. Token ids count for less, since they are only hashed."""
    if isinstance(prompt, list):
        return len(prompt) // IDS_PER_CHAR
    return num_chat_chars(prompt) if isinstance(prompt, Chat) else len(prompt)
