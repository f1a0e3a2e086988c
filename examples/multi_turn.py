"""A conversation of two turns. The second turn computes only what is new: the first one's KV is found again.

python examples/multi_turn.py            # against the cluster of `make up`
"""

from __future__ import annotations

from typing import Any

from pando import lang as sgl


@sgl.function
def multi_turn(s: Any, first: str, second: str) -> None:
    s += sgl.system("You are a helpful assistant. You answer in one or two short sentences.")
    s += sgl.user(first)
    s += sgl.assistant(sgl.gen("first", max_tokens=32))
    s += sgl.user(second)
    s += sgl.assistant(sgl.gen("second", max_tokens=32))


def main() -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint())
    state = multi_turn.run(
        first="What is the capital of France?", second="And which river flows through it?", temperature=0, stream=True
    )
    for text in state.text_iter():
        print(text, end="", flush=True)
    print()
    for name in ("first", "second"):
        meta = state.get_meta_info(name)
        print(f"{name}: {meta['prompt_tokens']} prompt tokens, {meta['cached_tokens']} of them cached")


if __name__ == "__main__":
    main()
