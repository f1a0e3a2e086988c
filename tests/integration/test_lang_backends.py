"""Programs over real sockets, against a gateway and a router without a cluster: gRPC, HTTP and OpenAI backends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from common.base.errors import DeadlineExceeded, InvalidRequest, ModelNotFound, Overloaded, PeerLost, Unsupported
from pando.client.http import HttpClient
from pando.lang import (
    Backend,
    OpenAI,
    RuntimeEndpoint,
    assistant,
    function,
    gen,
    greedy_token_selection,
    select,
    unconditional_likelihood_normalized,
    user,
)
from tests.support.fake_inference import MODEL, Knobs
from tests.support.gateway_thread import GatewayThread


@pytest.fixture(scope="module")
def served() -> Iterator[GatewayThread]:
    with GatewayThread() as thread:
        yield thread


@pytest.fixture(params=["grpc", "http"])
def endpoint(request: pytest.FixtureRequest, served: GatewayThread) -> Iterator[Backend]:
    served.set_knobs(Knobs())
    served.fake.requests.clear()
    with RuntimeEndpoint(served.url if request.param == "http" else served.router_address) as made:
        yield made
    served.settle()


@pytest.fixture
def openai(served: GatewayThread) -> Iterator[OpenAI]:
    served.set_knobs(Knobs())
    served.fake.requests.clear()
    with OpenAI(MODEL, base_url=f"{served.url}/v1", extensions=True) as made:
        yield made
    served.settle()


@function
def conversation(s: Any) -> None:
    s += user("Repeat exactly: alpha beta gamma delta\n")
    s += assistant(gen("one", max_tokens=40))
    s += user("and again, please")
    s += assistant("Well: " + gen("two", max_tokens=8, temperature=0.0))


def test_a_conversation_goes_on_token_for_token(endpoint: Backend, served: GatewayThread) -> None:
    state = conversation.run(backend=endpoint)
    assert state["one"] == "alpha beta gamma delta"
    first, second = (bytes(request.token_ids.ids) for request in served.fake.requests)
    assert first.endswith(b"assistant: ") and second.startswith(first + b"alpha beta gamma delta")
    assert second.endswith(b"user: and again, please\nassistant: Well: ")
    assert state.get_meta_info("two")["cached_tokens"] >= (len(first) - 1) // 16 * 16
    assert state.get_meta_info("one")["finish_reason"] == {"type": "stop", "matched": "<|end|>"}


def test_a_stop_string_is_not_part_of_the_prompt(endpoint: Backend, served: GatewayThread) -> None:
    @function
    def program(s: Any) -> None:
        s += "Repeat exactly: one, two. three\n" + gen("a", stop=". ", max_tokens=40)
        s += "; " + gen("b", max_tokens=1)

    state = program.run(backend=endpoint)
    assert state["a"] == "one, two"
    assert bytes(served.fake.requests[1].token_ids.ids).endswith(b"three\none, two; ")


def test_forks_and_batches_share_their_prefix(endpoint: Backend) -> None:
    @function
    def program(s: Any, salt: str) -> None:
        s += f"A long common beginning, which all forks of {salt} share with each other. "
        forks = s.fork(3)
        forks += lambda index: f"Fork {index}: "
        forks += gen("x", max_tokens=4)
        forks.join()
        shared = len(f"A long common beginning, which all forks of {salt} share with each other. ") // 16 * 16
        for fork in forks:
            assert fork.get_meta_info("x")["cached_tokens"] >= shared - 16

    program.run(salt="one program", backend=endpoint)

    @function
    def item(s: Any, index: int) -> None:
        s += "Many items, one after another, begin with these very same words, and then: "
        s += f"{index} " + gen("x", max_tokens=4)

    states = item.run_batch([{"index": index} for index in range(6)], backend=endpoint, num_threads=3)
    assert all(state.get_meta_info("x")["cached_tokens"] >= 64 for state in states[1:])


def test_select_by_logprobs(endpoint: Backend) -> None:
    @function
    def program(s: Any, method: Any) -> None:
        s += "Which? " + select("x", ["aa", "bbbb"], choices_method=method) + "."

    state = program.run(method=greedy_token_selection, backend=endpoint)
    # the fake's logprob falls with the position, and only with it
    assert state["x"] == "aa" and state.text() == "Which? aa."
    meta = state.get_meta_info("x")
    assert [len(tokens) for tokens in meta["input_token_logprobs"]] == [2, 4]
    assert meta["input_token_logprobs"][0][0][:2] == pytest.approx((-0.5 - 7 / 100, ord("a")))
    state = program.run(method=unconditional_likelihood_normalized, backend=endpoint)
    assert state.get_meta_info("x")["unconditional_token_logprobs"][1][0] is None


def test_logprobs_and_choices(endpoint: Backend) -> None:
    @function
    def program(s: Any) -> None:
        s += "Repeat exactly: xyz\n" + gen("x", max_tokens=2, return_logprob=True, top_logprobs_num=2)
        s += gen("many", n=3, max_tokens=2, temperature=1.0)

    state = program.run(backend=endpoint)
    meta = state.get_meta_info("x")
    assert [token for _, _, token in meta["output_token_logprobs"]] == ["x", "y"]
    assert len(meta["output_top_logprobs"][0]) == 2 and meta["output_ids"] == list(b"xy")
    assert len(state["many"]) == len(state.get_meta_info("many")) == 3


def test_streams(endpoint: Backend) -> None:
    @function
    def program(s: Any) -> None:
        s += "Repeat exactly: alpha\n" + gen("x", max_tokens=9)

    state = program.run(stream=True, backend=endpoint)
    assert list(state.text_iter("x"))[:3] == ["a", "l", "p"] and state["x"] == "alpha"


@pytest.mark.parametrize("pause_at", [0, 3])
def test_a_program_that_ends_early_cancels_its_calls(endpoint: Backend, served: GatewayThread, pause_at: int) -> None:
    check_cancelled(endpoint, served, pause_at)


@pytest.mark.parametrize("pause_at", [0, 3])
def test_so_it_does_with_openai(openai: OpenAI, served: GatewayThread, pause_at: int) -> None:
    check_cancelled(openai, served, pause_at)


def check_cancelled(backend: Backend, served: GatewayThread, pause_at: int) -> None:
    """The call waits for ever; the program does not."""

    @function
    def program(s: Any) -> None:
        s += "hi" + gen("x", max_tokens=1900)
        assert served.fake.wait_for(lambda: served.fake.num_paused > paused)
        raise ZeroDivisionError

    served.set_knobs(Knobs(pause_at=pause_at))
    paused, cancelled = served.fake.num_paused, served.fake.num_cancelled
    with pytest.raises(ZeroDivisionError):
        program.run(backend=backend)
    assert served.fake.wait_for(lambda: served.fake.num_cancelled == cancelled + 1)


def test_errors_reach_the_program(endpoint: Backend, served: GatewayThread) -> None:
    @function
    def program(s: Any) -> None:
        s += "hi" + gen("x", temperature=9.0)

    with pytest.raises(InvalidRequest, match="temperature"):
        program.run(backend=endpoint)
    served.set_knobs(Knobs(fail_at=1, error=Overloaded("full")))
    with pytest.raises(Overloaded):
        conversation.run(backend=endpoint)


def test_a_client_of_the_callers_own_stays_open(served: GatewayThread) -> None:
    served.set_knobs(Knobs())
    with HttpClient(served.url) as client:
        with RuntimeEndpoint(client) as endpoint:
            conversation.run(backend=endpoint)
        assert client.model().name == MODEL
    served.settle()


def test_openai_chat_and_text(openai: OpenAI, served: GatewayThread) -> None:
    state = conversation.run(backend=openai)
    assert state["one"] == "alpha beta gamma delta"
    chat = served.fake.requests[1].chat
    assert chat.continue_final_message and chat.messages[-1].content == "Well: "
    assert chat.messages[1].content == "alpha beta gamma delta"
    meta = state.get_meta_info("one")
    assert meta["finish_reason"] == {"type": "stop"} and meta["completion_tokens"] == 23

    @function
    def text(s: Any) -> None:
        s += "Repeat exactly: one. two\n" + gen("a", stop=".", max_tokens=30, n=2, return_logprob=True)

    state = text.run(backend=openai)
    assert state["a"] == ["one", "one"] and served.fake.requests[-1].text == "Repeat exactly: one. two\n"
    assert state.get_meta_info("a")[0]["logprobs"]

    @function
    def by_schema(s: Any) -> None:
        s += "A flag: " + gen("a", json_schema={"type": "boolean"}, max_tokens=8)

    by_schema.run(backend=openai)
    assert served.fake.requests[-1].sampling.grammar.json_schema == '{"type": "boolean"}'


def test_openai_select(openai: OpenAI) -> None:
    @function
    def program(s: Any) -> None:
        s += "Which? " + select("x", ["aa", "bbbb"])

    state = program.run(backend=openai)
    assert state["x"] == "aa"
    assert [len(tokens) for tokens in state.get_meta_info("x")["input_token_logprobs"]] == [2, 4]


def test_what_openai_cannot_do(openai: OpenAI, served: GatewayThread) -> None:
    @function
    def chat_select(s: Any) -> None:
        s += user("hi")
        s += assistant(select("x", ["a", "b"]))

    @function
    def without_ids(s: Any) -> None:
        s += "hi" + select("x", ["a", "b"], choices_method=unconditional_likelihood_normalized)

    for program in (chat_select, without_ids):
        with pytest.raises(Unsupported):
            program.run(backend=openai)
    with OpenAI(MODEL, base_url=f"{served.url}/v1") as plain:
        with pytest.raises(Unsupported, match="continue_final_message"):
            conversation.run(backend=plain)
        with pytest.raises(Unsupported, match="top_k"):
            conversation.run(top_k=5, backend=plain)
    with pytest.raises(InvalidRequest, match="temperature"):
        conversation.run(temperature=float("nan"), backend=openai)


def test_openai_errors(openai: OpenAI, served: GatewayThread) -> None:
    with OpenAI("other", base_url=f"{served.url}/v1") as wrong, pytest.raises(ModelNotFound):
        conversation.run(backend=wrong)
    served.set_knobs(Knobs(fail_at=1, error=Overloaded("full")))
    with pytest.raises(Overloaded):
        conversation.run(backend=openai)
    served.set_knobs(Knobs(pause_at=1))
    with OpenAI(MODEL, base_url=f"{served.url}/v1", timeout_s=0.3) as hasty, pytest.raises(DeadlineExceeded):
        conversation.run(backend=hasty)
    with OpenAI(MODEL, base_url="http://127.0.0.1:9/v1") as nobody, pytest.raises(PeerLost, match=r"127\.0\.0\.1:9"):
        conversation.run(backend=nobody)
