"""A real router over fake workers: what a client of `pando.v1.Inference` sees while nothing fails."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.base.errors import Leg, PeerLost
from common.base.limits import LimitsConfig
from common.kv.hashing import block_hashes, prefix_root
from common.rpc.convert import split_hashes
from common.rpc.errors import METADATA_KEY
from common.tokenizer.tokenizer import Tokenizer
from pando.v1 import inference_pb2, types_pb2
from tests.support.fake_worker import BLOCK_SIZE, FakeWorker, Fault, identity
from tests.support.router_bench import LIMIT_S, MAX_POSITION, Bench, bench, eventually, text_request, write_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


async def failure(made: Bench, request: inference_pb2.GenerateRequest) -> tuple[grpc.StatusCode, types_pb2.ErrorDetail]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await made.ask(request)
    metadata = dict(caught.value.trailing_metadata() or ())
    return caught.value.code(), types_pb2.ErrorDetail.FromString(metadata[METADATA_KEY])


async def test_one_choice_comes_as_the_worker_made_it(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        request = text_request(request_id="r1", return_prompt_token_ids=True, sampling__logprobs=0)
        answer = await made.ask(request)
        assert (answer.tokens[0], answer.text[0]) == made.expected(request)
        prompt_ids = made.model.tokenizer.encode(request.text, True)
        assert list(answer.frames[0].prompt.token_ids) == prompt_ids
        assert answer.frames[-1].usage.prompt_tokens == len(prompt_ids)
        assert answer.frames[-1].usage.completion_tokens == 24
        assert {frame.request_id for frame in answer.frames} == {"r1"}
        call = made.workers[0].calls[0]
        assert call.request.request_id == "r1.0.0"
        assert call.prefill.worker_id == "prefill-1" and call.prefill.incarnation == 2
        root = prefix_root(BLOCK_SIZE, "")
        assert split_hashes(call.request.prefix_hashes) == block_hashes(root, prompt_ids, BLOCK_SIZE)
        assert call.request.namespace == identity().namespace
        assert LIMIT_S / 2 < made.workers[0].deadlines_s[0] <= LIMIT_S + 0.5
        assert made.metric("requests_total", outcome="ok") == 1
        assert made.metric("cached_tokens_total", tier="l1") == 16
        assert made.metric("generated_tokens_total") == 24
        assert made.metric("ttft_seconds_count") == 1 and made.metric("itl_seconds_count") == 23


async def test_short_prompts_are_prefilled_on_decode(model_dir: Path) -> None:
    async with bench(model_dir, remote_prefill_min_tokens=1000) as made:
        await made.ask(text_request())
        assert not made.workers[0].calls[0].HasField("prefill")
        assert made.metric("plans_total", reason="short_suffix") == 1


async def test_choices_share_prompt_and_seed_but_not_their_tokens(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"]) as made:
        request = text_request(n=3, sampling__temperature=1.0, sampling__seed=7)
        answer = await made.ask(request)
        for choice in range(3):
            assert (answer.tokens[choice], answer.text[choice]) == made.expected(request, choice)
        assert len({tuple(tokens) for tokens in answer.tokens.values()}) == 3
        assert {choice: 2 for choice in range(3)} == answer.finish
        calls = [call for worker in made.workers for call in worker.calls]
        assert {call.request.sampling.seed for call in calls} == {7}
        assert made.metric("prompt_tokens_total") == answer.frames[0].prompt.num_tokens


async def test_siblings_follow_the_first_choice_to_its_blocks(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"], remote_prefill_min_tokens=64) as made:
        await made.ask(text_request("word " * 60, n=3, max_tokens=2))
        busy = [worker for worker in made.workers if worker.calls]
        assert len(busy) == 1, "all choices on the worker that has the prompt"
        assert all(call.HasField("prefill") for call in busy[0].calls), "its blocks may not have landed yet"
        assert made.metric("plans_total", reason="landing") == 2


async def test_a_seed_is_drawn_when_none_is_given(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        await made.ask(text_request(sampling__temperature=1.0, max_tokens=1))
        await made.ask(text_request(sampling__temperature=1.0, max_tokens=1))
        first, second = (call.request.sampling.seed for call in made.workers[0].calls)
        assert first != second


async def test_max_tokens_is_cut_to_the_context_of_model_and_workers(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        request = text_request("x " * 200, max_tokens=1_000_000)
        answer = await made.ask(request)
        prompt = answer.frames[0].prompt.num_tokens
        assert made.workers[0].calls[0].request.sampling.max_tokens == 512 - prompt == len(answer.tokens[0])
        code, detail = await failure(made, text_request("x " * 600))
        assert code is grpc.StatusCode.INVALID_ARGUMENT and detail.reason == "context_length_exceeded"
        num_tokens = len(made.model.tokenizer.encode("x " * 600, True))
        assert detail.param == "prompt" and str(num_tokens) in detail.message and "512" in detail.message


async def test_strict_context_refuses_what_does_not_fit(model_dir: Path) -> None:
    async with bench(model_dir, context_policy="strict") as made:
        code, detail = await failure(made, text_request(max_tokens=511))
        assert (code.name, detail.reason) == ("INVALID_ARGUMENT", "context_length_exceeded")


async def test_output_that_the_client_has_is_continued(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        whole = text_request(max_tokens=20)
        tokens, text = made.expected(whole)
        rest = text_request(max_tokens=20, output_token_ids=tokens[:9])
        frames = [frame async for frame in made.stub.Generate(rest)]
        assert frames[0].token_index == 9
        assert [token for frame in frames for token in frame.token_ids] == tokens[9:]
        assert text.endswith("".join(frame.text for frame in frames))
        assert frames[0].text_offset + sum(len(frame.text) for frame in frames) == len(text)
        assert frames[-1].usage.completion_tokens == 20


async def test_chat_is_rendered_and_bad_roles_are_the_callers_fault(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        chat = types_pb2.ChatPrompt(messages=[types_pb2.ChatMessage(role="user", content="hello")])
        sampling = types_pb2.SamplingParams(max_tokens=2, temperature=0)
        await made.ask(inference_pb2.GenerateRequest(chat=chat, sampling=sampling))
        tokenized = await made.stub.Tokenize(inference_pb2.TokenizeRequest(chat=chat))
        assert list(made.workers[0].calls[0].request.prompt_token_ids) == list(tokenized.token_ids)
        assert b"".join(tokenized.tokens).decode() == tokenized.text and "hello" in tokenized.text
        chat.messages[0].role = "robot"
        code, detail = await failure(made, inference_pb2.GenerateRequest(chat=chat, sampling=sampling))
        assert (code.name, detail.param) == ("INVALID_ARGUMENT", "messages")
        assert made.metric("requests_total", outcome="invalid") == 1


async def test_requests_that_can_never_work_name_their_field(model_dir: Path) -> None:
    async with bench(model_dir, limits=LimitsConfig(max_n=2)) as made:
        cases = [
            (text_request(model="other"), "NOT_FOUND", "model"),
            (text_request(n=3), "INVALID_ARGUMENT", "n"),
            (text_request(max_tokens=0), "INVALID_ARGUMENT", "max_tokens"),
            (inference_pb2.GenerateRequest(), "INVALID_ARGUMENT", "prompt"),
            (text_request(sampling__stop_token_ids=[10**6]), "INVALID_ARGUMENT", "stop_token_ids"),
        ]
        grammar = text_request()
        grammar.sampling.grammar.regex = "("
        for request, code, param in [*cases, (grammar, "INVALID_ARGUMENT", "response_format")]:
            got, detail = await failure(made, request)
            assert (got.name, detail.param) == (code, param)
            assert detail.request_id
        assert made.metric("running_requests") == 0


async def test_an_id_that_runs_is_refused_and_free_again_afterwards(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        fault = Fault(after=2, hang=True)
        made.workers[0].faults.append(fault)
        first = asyncio.create_task(made.ask(text_request(request_id="same")))
        await fault.reached.wait()
        code, detail = await failure(made, text_request(request_id="same"))
        assert (code.name, detail.reason) == ("INVALID_ARGUMENT", "duplicate_request_id")
        fault.resume.set()
        assert len((await first).tokens[0]) == 24
        assert len((await made.ask(text_request(request_id="same"))).tokens[0]) == 24


async def test_too_many_requests_are_refused_with_a_time_to_come_back(model_dir: Path) -> None:
    async with bench(model_dir, max_concurrent_requests=1) as made:
        fault = Fault(hang=True)
        made.workers[0].faults.append(fault)
        first = asyncio.create_task(made.ask(text_request()))
        await fault.reached.wait()
        code, detail = await failure(made, text_request())
        assert (code.name, detail.reason) == ("RESOURCE_EXHAUSTED", "too_many_requests") and detail.retry_after_s > 0
        assert made.metric("refusals_total", reason="too_many_requests") == 1
        fault.resume.set()
        await first


async def test_abort_ends_the_stream_and_the_work(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        fault = Fault(after=3, hang=True)
        made.workers[0].faults.append(fault)
        call = made.stub.Generate(text_request(request_id="gone"))
        reader = asyncio.create_task(_read(call))
        await fault.reached.wait()
        assert (await made.stub.Abort(inference_pb2.AbortRequest(request_id="gone"))).found
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reader
        assert caught.value.code() is grpc.StatusCode.CANCELLED
        await eventually(lambda: made.workers[0].num_running == 0, "the worker's call ended")
        assert not (await made.stub.Abort(inference_pb2.AbortRequest(request_id="gone"))).found
        assert made.metric("requests_total", outcome="abort") == 1


async def _read(call: grpc.aio.UnaryStreamCall) -> None:
    async for _ in call:
        pass


@pytest.mark.parametrize("n", [1, 3])
async def test_a_client_that_goes_away_cancels_its_workers_calls(model_dir: Path, n: int) -> None:
    async with bench(model_dir) as made:
        worker = made.workers[0]
        faults = [Fault(after=3, hang=True) for _ in range(n)]
        worker.faults.extend(faults)
        call = made.stub.Generate(text_request(n=n))
        reader = asyncio.create_task(_read(call))
        await asyncio.gather(*(fault.reached.wait() for fault in faults))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await eventually(lambda: worker.num_running == 0 and worker.num_cancelled == n, "the worker's calls ended")
        await eventually(lambda: made.metric("requests_total", outcome="abort") == 1, "counted once")
        assert made.metric("running_requests") == 0
        assert made.router.registry.get_sample_value("pando_router_queued_tokens") == 0


async def test_the_callers_deadline_reaches_the_worker_and_ends_the_request(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        made.workers[0].faults.append(Fault(after=3, hang=True))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await made.ask(text_request(), timeout_s=1.5)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert made.workers[0].deadlines_s[0] < 2.0
        await eventually(lambda: made.workers[0].num_running == 0, "the worker's call ended")
        await eventually(lambda: made.metric("requests_total", outcome="deadline") == 1, "counted as deadline")


async def test_model_tokens_and_workers_are_described(model_dir: Path) -> None:
    async with bench(model_dir) as made:
        model = await made.stub.GetModel(inference_pb2.GetModelRequest(model="tiny"))
        assert (model.name, model.architecture, model.max_model_len) == ("tiny", "llama", 512)
        assert (model.block_size, model.has_chat_template, list(model.eos_token_ids)) == (BLOCK_SIZE, True, [0])
        text = "héllo 日本"
        tokens = await made.stub.Tokenize(inference_pb2.TokenizeRequest(text=text))
        request = inference_pb2.DetokenizeRequest(token_ids=tokens.token_ids)
        assert (await made.stub.Detokenize(request)).text == text
        workers = await made.status()
        assert workers["decode-0"].roles == ["decode"] and workers["decode-0"].state == "ready"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await made.stub.Detokenize(inference_pb2.DetokenizeRequest(token_ids=[10**6]))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_without_workers_the_answer_is_503_and_health_says_so(model_dir: Path) -> None:
    async with bench(model_dir, []) as made:
        code, detail = await failure(made, text_request())
        assert (code.name, detail.reason) == ("UNAVAILABLE", "no_worker")
        model = await made.stub.GetModel(inference_pb2.GetModelRequest())
        assert model.max_model_len == MAX_POSITION
        assert await health(made) == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_needs_both_roles(model_dir: Path) -> None:
    async with bench(model_dir, ["decode"]) as made:
        assert await health(made) == health_pb2.HealthCheckResponse.NOT_SERVING
        prefill = await FakeWorker("late", ["prefill"], made.model.tokenizer).start()
        made.workers.append(prefill)
        made.registry.register(prefill)
        await made.until(lambda known: len(known) == 2)
        async with asyncio.timeout(LIMIT_S):
            while await health(made) != health_pb2.HealthCheckResponse.SERVING:  # noqa: ASYNC110 - another server
                await asyncio.sleep(0.01)


async def health(made: Bench) -> int:
    stub = health_pb2_grpc.HealthStub(made.channel)
    return (await stub.Check(health_pb2.HealthCheckRequest())).status


async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(model_dir) as made:
        monkeypatch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("encoded"))
        code, detail = await failure(made, text_request(text="1" * 1_000_000))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert (detail.reason, detail.param) == ("context_length_exceeded", "prompt")
        assert "at least" in detail.message
        with pytest.raises(grpc.aio.AioRpcError, match="at least"):
            await made.stub.Tokenize(inference_pb2.TokenizeRequest(text="1" * 1_000_000))


async def test_a_request_can_be_explained(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"]) as made:
        made.workers[0].faults.append(Fault(error=PeerLost("bang", leg=Leg.DECODE)))
        await made.ask(text_request("word " * 60, max_tokens=9, request_id="to-explain"))
        told = await made.stub.Explain(inference_pb2.ExplainRequest(request_id="to-explain"))
        assert told.found and told.policy == "prefix"
        first, second = told.decisions
        assert (first.decode_worker, first.prefill_worker) == ("decode-0", "prefill-2")
        assert first.outcome == "decode: peer_lost" and not first.HasField("reused") and not first.ttft_s
        assert (second.attempt, second.decode_worker, second.outcome) == (1, "decode-1", "finished")
        assert second.reused.l1 == 16 and second.ttft_s > 0
        assert [one.worker_id for one in second.candidates if one.chosen] == ["decode-1", "prefill-2"]
        unknown = await made.stub.Explain(inference_pb2.ExplainRequest(request_id="nobody's"))
        assert not unknown.found
        command = [sys.executable, "-m", "pando.cli.main", "admin", "explain", "to-explain", "--router"]
        process = await asyncio.create_subprocess_exec(
            *command, made.router.address, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        assert process.returncode == 0 and b"choice 0, attempt 1" in output and b"16 tokens in l1" in output, output


async def test_the_policy_can_be_chosen(model_dir: Path) -> None:
    async with bench(model_dir, ["decode", "decode", "prefill"], policy="round_robin") as made:
        for _ in range(4):
            await made.ask(text_request("word " * 60, max_tokens=2))
        assert [len(worker.calls) for worker in made.workers[:2]] == [2, 2]


async def test_priority_reaches_the_worker_and_a_session_its_last_one(model_dir: Path) -> None:
    async with bench(model_dir, ["decode+prefill"] * 3) as made:
        first = text_request("other words " * 30, max_tokens=2, priority=7, session_id="s")
        await made.ask(first)
        (last,) = [worker for worker in made.workers if worker.calls]
        assert last.calls[0].request.priority == 7
        for number in range(3):
            await made.ask(text_request(f"{number} more words " * 30, max_tokens=2, session_id="s"))
        assert len(last.calls) == 4
