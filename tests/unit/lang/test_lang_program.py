"""Programs over a backend without a model: order, variables, roles, forks, errors, streams, batches, traces."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from common.base.errors import InvalidRequest, Overloaded, PandoError, Unsupported
from pando import lang
from pando.lang import assistant, function, gen, select, system, user
from tests.support.lang_backend import FakeBackend


@function
def two_turns(s: Any, first: str, second: str) -> str:
    s += system("Be brief.")
    s += user(first)
    s += assistant(gen("one", max_tokens=8))
    s += user(second + s["one"])
    s += assistant("So: " + gen("two"))
    return "done"


def fails_on(word: str) -> FakeBackend:
    return FakeBackend(lambda prompt: Overloaded("full") if word in prompt else "ok")


def test_two_turns() -> None:
    backend = FakeBackend()
    state = two_turns.run("hello", second="and ", backend=backend)
    assert state["one"] == f"[{len('system: Be brief.') + 1 + len('user: hello') + 1 + len('assistant: ')}]"
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": state["one"]},
        {"role": "user", "content": "and " + state["one"]},
        {"role": "assistant", "content": "So: " + state["two"]},
    ]
    assert backend.prompts[1].endswith("assistant: So: ")
    assert state.ret_value == "done" and state.error() is None
    assert state.get_meta_info("two") == {"completion_tokens": len(state["two"])}
    assert state.text().startswith("system: Be brief.\nuser: hello\nassistant: [")


def test_plain_text_and_sums() -> None:
    @function
    def program(s: Any) -> None:
        s += "Q: " + gen("a") + ", " + gen("b") + "."
        s += "x" + select("pick", ["no", "yes"])

    state = program.run(backend=FakeBackend(lambda prompt: str(len(prompt))))
    assert state.text() == "Q: 3, 6.xyes"
    assert (state["a"], state["b"], state["pick"]) == ("3", "6", "yes")
    assert state.get_meta_info("pick") == {"picked": "yes"} and state.messages() == []


def test_options_of_the_call_go_over_those_of_the_run() -> None:
    @function
    def program(s: Any, temperature: float) -> None:
        s += str(temperature) + gen("a") + gen("b", max_tokens=3, stop="x", return_logprob=True)

    backend = FakeBackend()
    program.run(temperature=0.5, max_new_tokens=9, top_p=0.5, top_k=None, backend=backend)
    first, second = backend.gens
    assert first.options == {"max_tokens": 9, "top_p": 0.5}
    assert second.options == {"max_tokens": 3, "top_p": 0.5, "stop": "x", "logprobs": 0}
    assert backend.prompts[0] == "0.5", "a name that the function takes is the function's"
    program.run(temperature=1.0, backend=backend)
    assert backend.gens[-2].options == {"max_tokens": 128}


def test_a_variable_that_is_written_again_is_the_new_one() -> None:
    @function
    def program(s: Any) -> list[str]:
        found = []
        for _ in range(3):
            s += "." + gen("x")
            found.append(s["x"])
        return found

    assert program.run(backend=FakeBackend(lambda prompt: str(len(prompt)))).ret_value == ["1", "3", "5"]


def test_several_continuations() -> None:
    @function
    def program(s: Any) -> None:
        s += "a" + gen("x", n=3) + "b"

    state = program.run(backend=FakeBackend(lambda prompt: "t"))
    assert state["x"] == ["t", "t#1", "t#2"] and state.text() == "atb"
    assert [meta["completion_tokens"] for meta in state.get_meta_info("x")] == [1, 3, 3]


def test_variables_by_hand_scopes_and_membership() -> None:
    @function
    def program(s: Any) -> None:
        s["given"] = 5
        with s.var_scope("all"):
            s += "a" + gen("x") + "b"
        assert "x" in s and "given" in s and "other" not in s
        with pytest.raises(KeyError, match="other"):
            s["other"]

    state = program.run(backend=FakeBackend(lambda prompt: "t"))
    assert (state["given"], state["all"], state.get_var("x")) == (5, "atb", "t")


def test_roles_as_contexts_and_begin_end() -> None:
    @function
    def program(s: Any) -> None:
        with s.user():
            s += "hi "
            s += "there"
        s += lang.assistant_begin() + gen("x") + lang.assistant_end()
        s.user("more")
        s.assistant(gen("y"))

    roles = [message["role"] for message in program.run(backend=FakeBackend()).messages()]
    assert roles == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda s: s.user(user("x")), "do not nest"),
        (lambda s: s.user("x") or s.__iadd__("loose"), "inside"),
        (lambda s: s.__iadd__("text") and s.user("x"), "after plain text"),
        (lambda s: s.__iadd__(lang.user_end()), "not open"),
    ],
)
def test_misplaced_roles(write: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        function(lambda s: write(s) and None).run(backend=FakeBackend())


def test_what_cannot_be_appended() -> None:
    @function
    def program(s: Any) -> None:
        s += 5

    with pytest.raises(TypeError, match="int"):
        program.run(backend=FakeBackend())


def test_forks_run_at_the_same_time_and_join() -> None:
    backend = FakeBackend(lambda prompt: prompt[-1])
    backend.gate.clear()

    @function
    def program(s: Any) -> None:
        s += "common "
        forks = s.fork(3)
        forks += lambda index: "abc"[index]
        forks += gen("letter")
        assert backend.wait_for_prompts(3)
        backend.gate.set()
        forks.join()
        s += ",".join(s["letter"])

    state = program.run(backend=backend)
    assert state["letter"] == ["a", "b", "c"] and state.text() == "common a,b,c"
    assert len(state.get_meta_info("letter")) == 3, "the meta info of every fork"
    with pytest.raises(KeyError, match="no meta info of 'other'"):
        state.get_meta_info("other")
    assert sorted(backend.prompts) == ["common a", "common b", "common c"] and backend.max_active == 3
    assert backend.warmed == ["common "]


def test_forks_are_apart() -> None:
    @function
    def program(s: Any) -> tuple[str, str, str]:
        s += "p" + gen("before")
        forks = s.fork(2)
        forks[0] += "0" + gen("x")
        forks += ["l", "r"]
        with s.copy() as tried:
            tried += "tried"  # noqa: PLW2901 - appends in place
        return s.text(), forks[0].text(), forks[1].text()

    backend = FakeBackend(lambda prompt: "t")
    state = program.run(backend=backend)
    assert state.ret_value == ("pt", "pt0tl", "ptr") and len(backend.warmed) == 1


def test_only_one_way_to_join() -> None:
    @function
    def program(s: Any) -> None:
        s.fork(2).join("concate_and_append")

    with pytest.raises(Unsupported):
        program.run(backend=FakeBackend())


def test_an_error_is_raised_where_the_variable_is_read() -> None:
    seen: list[PandoError] = []

    @function
    def program(s: Any) -> str:
        s += "bad" + gen("x")
        s += "never sent" + gen("y")
        try:
            return str(s["x"])
        except PandoError as error:
            seen.append(error)
            return "caught"

    state = program.run(backend=fails_on("bad"))
    assert state.ret_value == "caught" and isinstance(seen[0], Overloaded)
    assert state.error() is seen[0]
    with pytest.raises(Overloaded):
        state["y"]


def test_an_error_that_nobody_saw_is_raised_at_the_end() -> None:
    @function
    def program(s: Any) -> None:
        s += "bad" + gen("x")

    with pytest.raises(Overloaded):
        program.run(backend=fails_on("bad"))

    @function
    def in_a_fork(s: Any) -> None:
        s += "fine"
        s.fork(2)[1].__iadd__("bad" + gen("x"))

    with pytest.raises(Overloaded):
        in_a_fork.run(backend=fails_on("bad"))


def test_a_failing_fork_does_not_hang_join() -> None:
    @function
    def program(s: Any) -> None:
        s += "start"
        forks = s.fork(3)
        forks += ["good", "bad", "good"]
        forks += gen("x")
        with pytest.raises(Overloaded):
            forks.join()
        assert forks[0]["x"] == "ok" and "x" not in s

    program.run(backend=fails_on("bad"))


def test_an_exception_of_the_program_cuts_short_what_runs() -> None:
    backend = FakeBackend(lambda prompt: "abc" * 1000)
    backend.gate.clear()

    @function
    def program(s: Any) -> None:
        s += gen("x")
        assert backend.wait_for_prompts(1)
        threading.Timer(0.05, backend.gate.set).start()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program.run(backend=backend)
    assert backend.max_active == 1


def test_stream_text_and_variables() -> None:
    @function
    def program(s: Any) -> None:
        s += user("hi")
        s += assistant("<" + gen("x") + ">" + gen("y"))

    backend = FakeBackend(lambda prompt: "abc" if "<" not in prompt[:-1] else "de")
    backend.gate.clear()
    state = program.run(stream=True, backend=backend)
    pieces = state.text_iter()
    assert [next(pieces) for _ in range(6)] == ["user: ", "hi", "\n", "assistant: ", "<", "a"]
    letters = state.text_iter("x")
    assert next(letters) == "a"
    backend.gate.set()
    assert list(letters) == ["b", "c"] and "".join(pieces) == "bc>de\n"
    assert "".join(state.text_iter("y")) == "de" and state["y"] == "de"
    assert state.messages()[1]["content"] == "<abc>de"


async def test_stream_on_an_event_loop() -> None:
    @function
    def program(s: Any) -> None:
        s += "a" + gen("x") + "b"

    state = program.run(stream=True, backend=FakeBackend(lambda prompt: "xyz"))
    assert [text async for text in state.text_async_iter("x")] == ["x", "y", "z"]
    assert "".join([text async for text in state.text_async_iter()]) == "axyzb"


def test_a_reader_waits_for_what_is_not_written_yet() -> None:
    go = threading.Event()

    @function
    def program(s: Any) -> None:
        assert go.wait(timeout=10)
        s += gen("late")

    state = program.run(stream=True, backend=FakeBackend(lambda prompt: "t"))
    threading.Timer(0.05, go.set).start()
    assert state["late"] == "t"
    with pytest.raises(KeyError):
        state["never"]


def test_a_stream_that_fails_says_so() -> None:
    @function
    def program(s: Any) -> None:
        s += "bad" + gen("x")

    state = program.run(stream=True, backend=fails_on("bad"))
    with pytest.raises(Overloaded):
        list(state.text_iter())

    @function
    def buggy(s: Any) -> None:
        raise ZeroDivisionError

    state = buggy.run(stream=True, backend=FakeBackend())
    with pytest.raises(ZeroDivisionError):
        list(state.text_iter())
    with pytest.raises(ZeroDivisionError):
        state["x"]


@function
def item(s: Any, word: str) -> None:
    s += word + gen("x")


def test_batch_keeps_the_order_and_the_bound() -> None:
    backend = FakeBackend(lambda prompt: prompt.upper())
    words = [f"w{index}" for index in range(20)]
    states = item.run_batch([{"word": word} for word in words], num_threads=4, backend=backend, temperature=0.0)
    assert [state["x"] for state in states] == [word.upper() for word in words]
    assert 1 <= backend.max_active <= 4 and all(gen.options["temperature"] == 0.0 for gen in backend.gens)
    assert item.run_batch([], backend=backend) == []


def test_the_first_item_leads() -> None:
    backend = FakeBackend()
    backend.gate.clear()
    waits = threading.Thread(
        target=lambda: item.run_batch([{"word": str(index)} for index in range(4)], backend=backend)
    )
    waits.start()
    assert backend.wait_for_prompts(4), "the others start once the first one is being answered"
    backend.gate.set()
    waits.join()
    assert backend.prompts[0] == "0"


def test_a_leader_that_fails_holds_nobody_up() -> None:
    states = item.run_batch([{"word": "bad"}, {"word": "b"}], backend=fails_on("bad"), return_errors=True)
    assert isinstance(states[0].error(), Overloaded) and states[1]["x"] == "ok"
    with pytest.raises(Overloaded):
        states[0]["x"]
    with pytest.raises(Overloaded):
        item.run_batch([{"word": "a"}, {"word": "bad"}], backend=fails_on("bad"))


def test_batch_with_a_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    item.run_batch([{"word": "a"}, {"word": "b"}], backend=FakeBackend(), progress_bar=True)
    assert "2/2" in capsys.readouterr().err


def test_default_backend() -> None:
    with pytest.raises(InvalidRequest, match="set_default_backend"):
        item(word="x")
    lang.set_default_backend(FakeBackend(lambda prompt: "d"))
    try:
        assert item(word="x")["x"] == "d"
    finally:
        lang.set_default_backend(None)


def test_a_program_inside_another() -> None:
    @function
    def outer(s: Any) -> None:
        item(s, "inner")
        s += "!"

    assert outer.run(backend=FakeBackend(lambda prompt: "t")).text() == "innert!"


def test_trace() -> None:
    assert two_turns.trace(second="and ") == (
        "system: Be brief.\nuser: <first>\nassistant: <one>\nuser: and <one>\nassistant: So: <two>"
    )

    @function
    def plain(s: Any, a: str, b: str = "B") -> None:
        s += a + b + gen() + select("p", ["x", "y"])

    assert plain.trace() == "<a>B<gen><p: x | y>"


def test_a_program_needs_a_state() -> None:
    with pytest.raises(TypeError, match="state"):
        function(lambda: None)
