"""lm-eval, local-completions: a multiple-choice task (echo and logprobs) and one that generates, with prompts as text
and as ids, one by one and in batches; its figures are those of teacher forcing with another forward pass.

The served model must compute in fp32, as the cluster of `tests.clients.run` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

_cache = tempfile.TemporaryDirectory(prefix="pando-lm-eval-")
os.environ["HF_HOME"] = _cache.name  # Before datasets is imported: what it converts goes there.

from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from tests.clients.tour import Tour, begin  # noqa: E402

TASKS = Path(__file__).parent / "lm_eval_tasks"
TOLERANCE = 1e-3
WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ids, batches of 4", {"tokenized_requests": True, "num_concurrent": 1, "batch_size": 4}),
    ("text, 4 at a time", {"tokenized_requests": False, "num_concurrent": 4, "batch_size": 1}),
)


def expected(folder: str) -> dict[str, Any]:
    """What must be found; computed by the Python that has torch."""
    python = os.environ.get("PANDO_CLIENTS_PYTHON", sys.executable)
    command = [python, "-m", "tests.clients.lm_eval_expected", folder]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def evaluate(tour: Tour, options: dict[str, Any]) -> dict[str, Any]:
    """Both tasks, once."""
    arguments = {"model": tour.model, "base_url": f"{tour.base_url}/completions", "tokenizer": tour.folder}
    arguments |= {"tokenizer_backend": "huggingface", "max_length": 2048, "max_retries": 1, **options}
    found: dict[str, Any] = simple_evaluate(
        model="local-completions",
        model_args=arguments,
        tasks=["pando_capitals", "pando_cities"],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    return found


def by_document(found: dict[str, Any], task: str) -> list[Any]:
    """What the model was found to say to each document, in the order of the file."""
    samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
    return [sample["filtered_resps"] for sample in samples]


def check_scores(tour: Tour, way: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Log-likelihoods, greediness and accuracies of the multiple-choice task."""
    gap, same = 0.0, True
    for told, right in zip(by_document(found, "pando_capitals"), wanted["scores"], strict=True):
        for (value, greedy), (wanted_value, wanted_greedy) in zip(told, right, strict=True):
            gap = max(gap, abs(float(value) - wanted_value))
            same = same and (str(greedy) == str(wanted_greedy))
    tour.check(f"{way}: log-likelihoods within {TOLERANCE} (largest gap {gap:.1e})", gap < TOLERANCE)
    tour.check(f"{way}: greediness", same)
    for metric in ("acc", "acc_norm"):
        value = found["results"]["pando_capitals"][f"{metric},none"]
        tour.check(f"{way}: {metric} {value} equals", abs(value - wanted[metric]) < 1e-9, wanted[metric])


def check_texts(tour: Tour, way: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Texts and exact matches of the other task."""
    texts = [told[0] for told in by_document(found, "pando_cities")]
    tour.check(f"{way}: generated texts equal", texts == wanted["texts"], (texts, wanted["texts"]))
    value = found["results"]["pando_cities"]["exact_match,none"]
    tour.check(f"{way}: exact_match {value} equals", abs(value - wanted["exact_match"]) < 1e-9, wanted["exact_match"])


def main() -> None:
    """Go."""
    tour = begin(f"lm-eval {version('lm-eval')}")
    wanted = expected(tour.folder)
    for way, options in WAYS:
        found = evaluate(tour, options)
        check_scores(tour, way, found, wanted["capitals"])
        check_texts(tour, way, found, wanted["cities"])
    tour.done()


if __name__ == "__main__":
    main()
