"""Many questions with the same examples in front: the examples are computed once, for the first one.

python examples/batch.py                 # against the cluster of `make up`
"""

from __future__ import annotations

from typing import Any

from pando import lang as sgl

EXAMPLES = """Decide whether the review is positive or negative.

Review: I loved every minute of it, and so did my children.
Verdict: positive

Review: The plot made no sense and the actors seemed bored.
Verdict: negative

Review: A wonderful evening, I would see it again tomorrow.
Verdict: positive

"""
REVIEWS = [
    "The best film of the year.",
    "I left after half an hour, it was that dull.",
    "Beautiful pictures and a moving story.",
    "A waste of time and money.",
    "Funny, clever and warm.",
    "I have never been so bored.",
]


@sgl.function
def classify(s: Any, review: str) -> None:
    s += EXAMPLES + f"Review: {review}\nWhat speaks for the verdict:"
    s += sgl.gen("reason", max_tokens=8, stop="\n")
    s += "\nVerdict: " + sgl.select("verdict", ["positive", "negative"])


def main() -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint())
    states = classify.run_batch([{"review": review} for review in REVIEWS], temperature=0, progress_bar=True)
    for review, state in zip(REVIEWS, states, strict=True):
        print(f"{state['verdict']:8} {review}")
    cached = [state.get_meta_info("reason")["cached_tokens"] for state in states]
    print(f"cached tokens: {cached}")


if __name__ == "__main__":
    main()
