"""What lm-eval must find, by teacher forcing with the naive forward pass: `python -m tests.clients.lm_eval_expected
FOLDER` prints it as JSON.

Runs under the Python that has torch. It writes the prompts down once more instead of asking lm-eval for them, so that a
wrong split between context and continuation shows as well.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from tests.support.naive_forward import NaiveModel

TASKS = Path(__file__).parent / "lm_eval_tasks"
MAX_NEW_TOKENS = 6


def items(name: str) -> list[dict[str, Any]]:
    """The lines of a task's data."""
    return [json.loads(line) for line in (TASKS / f"{name}.jsonl").read_text("utf-8").splitlines()]


class Judge:
    """Scores and continues texts."""

    def __init__(self, folder: Path) -> None:
        self._model = NaiveModel(folder)
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def score(self, context: str, continuation: str) -> tuple[float, bool]:
        """Log-likelihood of the continuation, and whether it is what greedy decoding says."""
        ids, start = self._ids(context + continuation), len(self._ids(context))
        target = torch.tensor(ids[start:])
        logprobs = torch.log_softmax(self._model.logits(ids[:-1], last=len(target)), dim=-1)
        own = logprobs[torch.arange(len(target)), target]
        return own.sum().item(), bool((logprobs.argmax(-1) == target).all())

    def continued(self, context: str) -> str:
        """What greedy decoding writes up to the end of the line."""
        prompt = self._ids(context)
        output: list[int] = []
        while len(output) < MAX_NEW_TOKENS and "\n" not in self._tokenizer.decode(output):
            output.append(int(self._model.logits([*prompt, *output], last=1)[0].argmax()))
        return str(self._tokenizer.decode(output)).partition("\n")[0]


def capitals(judge: Judge) -> dict[str, Any]:
    """Scores of every choice, and both accuracies."""
    scores, right, right_by_length = [], 0, 0
    for item in items("capitals"):
        context = f"Question: {item['question']}\nAnswer:"
        found = [judge.score(context, f" {choice}") for choice in item["choices"]]
        values = [value for value, _ in found]
        by_length = [value / len(choice) for value, choice in zip(values, item["choices"], strict=True)]
        right += values.index(max(values)) == item["answer"]
        right_by_length += by_length.index(max(by_length)) == item["answer"]
        scores.append(found)
    return {"scores": scores, "acc": right / len(scores), "acc_norm": right_by_length / len(scores)}


def cities(judge: Judge) -> dict[str, Any]:
    """Texts, and how many are exactly right."""
    texts, right = [], 0
    for item in items("cities"):
        text = judge.continued(f"Tokyo is in Japan.\nRome is in Italy.\n{item['city']} is in")
        texts.append(text)
        right += text == f" {item['country']}."
    return {"texts": texts, "exact_match": right / len(texts)}


def main() -> None:
    """Go."""
    torch.set_num_threads(1)
    judge = Judge(Path(sys.argv[1]))
    print(json.dumps({"capitals": capitals(judge), "cities": cities(judge)}))


if __name__ == "__main__":
    main()
