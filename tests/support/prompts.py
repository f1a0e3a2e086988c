"""Forty prompts of many kinds for the real model: prose, chat, code, digits, unicode, lists, long context."""

from __future__ import annotations

from pathlib import Path

from common.tokenizer.chat_template import ChatTemplate
from common.tokenizer.tokenizer import Tokenizer

PLAIN = (
    "The capital of France is",
    "Once upon a time, in a village at the edge of a great forest, there lived",
    "Water boils at a lower temperature on a mountain because",
    "The three laws of thermodynamics are, in order:",
    "A",
    "The",
    "In 1492, Christopher Columbus",
    "To be, or not to be, that is the question:",
    "My favourite recipe for pancakes needs the following ingredients:\n\n-",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
    "SELECT name, COUNT(*) FROM orders\n  JOIN customers ON",
    '{"name": "Ada", "age": 36, "languages": ["',
    "<html>\n  <head>\n    <title>",
    "import numpy as np\n\nx = np.linspace(0, 1, 100)\ny =",
    "$ ls -la\ntotal 48\ndrwxr-xr-x  5 user user 4096",
    "1 2 3 4 5 6 7 8 9 10 11",
    "3.14159265358979",
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
    "On 2024-02-29 at 12:34:56 the counter read 1000000007 and then",
    "\n\n2.\n\n\t\t3.",
    "Déjà vu : l'été dernier, à la plage,",
    "Die Straße führt über die Brücke nach",
    "日本の首都は",
    "Привет! Как твои",
    "مرحبا، كيف",
    "🙂🙃🙂🙃 emoji are",
    "naïve café — “quoted” … 50 € ± 3 °C ≈",
    "   leading spaces and    gaps   ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
)
QUESTIONS = (
    "What is the capital of Japan?",
    "Write a haiku about the sea.",
    "Explain gravity to a five-year-old.",
    "List three prime numbers greater than 100.",
    "Translate 'good morning' into Spanish, French and German.",
    "Write a Python function that reverses a string.",
    "Who wrote Pride and Prejudice, and when?",
)
SUBJECTS = ("lake", "mill", "owl", "bell", "ship", "clock", "fox", "lamp", "bridge", "garden")


def varied_prompts(model: Path) -> list[list[int]]:
    """Token ids of forty prompts, from 1 to about 900 tokens."""
    tokenizer, template = Tokenizer.load(model), ChatTemplate.load(model)
    assert template is not None, f"{model} has no chat template"
    chats = [template.render([{"role": "user", "content": question}]) for question in QUESTIONS]
    texts = [*PLAIN, *chats, _story(12), _story(50), _conversation(template)]
    return [tokenizer.encode(text, False) for text in texts]


def _story(num_sentences: int) -> str:
    """Prose in which no two sentences are the same."""
    names = [f"{SUBJECTS[i % 10]} and the {SUBJECTS[(3 * i + i // 10) % 10]}" for i in range(num_sentences)]
    return " ".join(f"On day {i + 1} the old {name} were seen near the harbour." for i, name in enumerate(names))


def _conversation(template: ChatTemplate) -> str:
    messages = [{"role": "system", "content": "You answer in one short sentence."}]
    for question in QUESTIONS[:3]:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": "Here is what I know."}]
    return template.render([*messages, {"role": "user", "content": "Thank you. And why is the sky blue?"}])
