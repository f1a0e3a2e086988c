"""Tree of thought: several plans, several ways to carry each out, and the likeliest answer wins.

    python examples/tree_of_thought.py       # against the cluster of `make up`

All branches share the KV of their common prefix, and the forks of a state run at the same time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from pando import lang as sgl

NUM_BRANCHES = 2
TEMPERATURE = 0.3


def propose_plan(s: Any, question: str) -> Any:
    s += sgl.user(f"Here is a question: {question}\nThink of a plan to solve it. Do not solve it yet.")
    forks = s.fork(NUM_BRANCHES)
    forks += sgl.assistant(sgl.gen("plan", max_tokens=24, temperature=TEMPERATURE))
    return forks


def execute_plan(s: Any) -> Any:
    s += sgl.user("The plan looks good. Follow it and find the answer.")
    forks = s.fork(NUM_BRANCHES)
    forks += sgl.assistant(sgl.gen("solution", max_tokens=24, temperature=TEMPERATURE))
    return forks


def answer(s: Any) -> None:
    s += sgl.user("Now give the final answer as a number only.")
    s += sgl.assistant("The answer is " + sgl.select("answer", ["3", "5", "8", "15"]))


@sgl.function
def tree_search(s: Any, question: str) -> dict[str, Any]:
    leaves = [leaf for plan in propose_plan(s, question) for leaf in execute_plan(plan)]
    for leaf in leaves:
        answer(leaf)
    votes = Counter(leaf["answer"] for leaf in leaves)
    cached = [leaf.get_meta_info("solution")["cached_tokens"] for leaf in leaves]
    return {"answer": votes.most_common(1)[0][0], "votes": dict(votes), "cached_tokens": cached}


def main() -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint())
    state = tree_search.run(question="Tom has 3 apples and buys 5 more. How many apples does he have?")
    print(f"votes: {state.ret_value['votes']}")
    print(f"cached tokens of the solutions: {state.ret_value['cached_tokens']}")
    print(f"answer: {state.ret_value['answer']}")


if __name__ == "__main__":
    main()
