"""Between the wire and the router's dataclasses; with `service.py` and `worker_rpc.py` the only place that builds
or reads protobuf messages. Frames are the exception: they pass from worker to client as they came, because parsing and
rebuilding each would be most of the router's work per token; and so do prompt ids and sampling parameters, once they
were checked, from client to worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from common.base.errors import InvalidRequest
from common.kv.events import IndexDigest
from common.rpc.convert import join_hashes, sampling_from_pb
from pando.v1 import inference_pb2, types_pb2, worker_pb2
from services.router.index_update import Update
from services.router.job import Chat, Job, Prompt, Wish
from services.router.member import Identity, Info, Member, Stats
from services.router.metrics import TIERS
from services.router.placement import Reuse
from services.router.policy import Candidate, Plan


def wish_from_pb(message: inference_pb2.GenerateRequest) -> Wish:
    """A generation request as plain data, nothing checked but the JSON in it.

    Raises:
        InvalidRequest: a JSON field is broken, or choices are empty.
    """
    sampling = message.sampling
    return Wish(
        message=message,
        request_id=message.request_id,
        model=message.model,
        prompt=prompt_from_pb(message),
        output_ids=tuple(message.output_token_ids),
        params=sampling_from_pb(sampling),
        max_tokens=sampling.max_tokens if sampling.HasField("max_tokens") else None,
        seed=sampling.seed if sampling.HasField("seed") else None,
        n=message.n or 1,
        cache_salt=message.cache_salt,
        priority=message.priority,
        session_id=message.session_id,
        return_prompt_ids=message.return_prompt_token_ids,
        tenant=message.tenant,
        tenant_weight=message.tenant_weight,
        first_choice=message.first_choice,
    )


def prompt_from_pb(message: inference_pb2.GenerateRequest | inference_pb2.TokenizeRequest) -> Prompt | None:
    """The prompt of a request; None when it has none."""
    kind = message.WhichOneof("prompt")
    if kind == "text":
        return message.text
    if kind == "chat":
        return _chat_from_pb(message.chat)
    if isinstance(message, inference_pb2.GenerateRequest) and kind == "token_ids":
        return message.token_ids.ids[:]
    return None


def _chat_from_pb(chat: types_pb2.ChatPrompt) -> Chat:
    return Chat(
        messages=[_message_from_pb(message) for message in chat.messages],
        tools=_json(chat.tools_json, list, "tools"),
        continue_final_message=chat.continue_final_message,
        template_kwargs=_json(chat.template_kwargs_json, dict, "chat_template_kwargs") or {},
    )


def _message_from_pb(message: types_pb2.ChatMessage) -> Mapping[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "name": message.name or None,
        "tool_calls": _json(message.tool_calls_json, list, "messages"),
        "tool_call_id": message.tool_call_id or None,
    }


def _json(text: str, kind: type, param: str) -> Any:
    if not text:
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{param} is not valid JSON", param=param) from error
    if not isinstance(value, kind):
        raise InvalidRequest(f"{param} must be a JSON {'array' if kind is list else 'object'}", param=param)
    return value


def decode_request(
    job: Job, plan: Plan, *, choice: int, attempt: int, output_ids: Sequence[int], text_offset: int
) -> worker_pb2.DecodeServiceGenerateRequest:
    """The call to the decode worker for one attempt at one choice, which has `output_ids` so far."""
    message = job.wish.message
    call = worker_pb2.DecodeServiceGenerateRequest(
        prefill=_worker_ref(plan.prefill) if plan.prefill else None,
        sources=[
            worker_pb2.BlockSource(worker=_worker_ref(source.worker), num_blocks=source.num_blocks)
            for source in plan.sources
        ],
        text_offset=text_offset,
    )
    request = call.request
    request.request_id = f"{job.request_id}.{choice}.{attempt}"
    request.prompt_token_ids.extend(message.token_ids.ids or job.prompt_ids)
    request.output_token_ids.extend(output_ids)
    request.sampling.MergeFrom(message.sampling)
    request.sampling.DiscardUnknownFields()
    request.sampling.max_tokens = job.max_tokens
    request.sampling.seed = job.seed
    request.choice = choice
    request.attempt = attempt
    request.priority = job.wish.priority
    request.cache_salt = job.wish.cache_salt
    request.prefix_hashes = join_hashes(job.hashes)
    request.namespace = job.kv.namespace
    return call


def _worker_ref(worker: Candidate) -> worker_pb2.WorkerRef:
    return worker_pb2.WorkerRef(worker_id=worker.key[0], incarnation=worker.key[1], address=worker.address)


def reuse_from_pb(usage: types_pb2.Usage) -> Reuse:
    """What a worker's usage tells of reuse and of moving KV."""
    cached = {tier: getattr(usage.cached_tokens, tier) for tier in TIERS}
    return Reuse(cached, usage.transfer_bytes, usage.transfer_s)


def info_from_pb(message: worker_pb2.GetInfoResponse) -> Info:
    """A worker's description of itself."""
    identity = message.identity
    return Info(
        worker_id=message.worker_id,
        incarnation=message.incarnation,
        identity=Identity(identity.namespace, identity.numerics_id, identity.block_bytes, identity.block_size),
        max_model_len=message.max_model_len,
        transports=tuple(endpoint.driver for endpoint in message.endpoints),
        pid=message.pid,
    )


def stats_from_pb(message: worker_pb2.GetStatsResponse) -> Stats:
    """A worker's load."""
    return Stats(
        incarnation=message.incarnation,
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        waiting_tokens=message.waiting_tokens,
        blocks_free=message.blocks_free,
        blocks_cached=message.blocks_cached,
        blocks_held=message.blocks_held,
        engine_step_age_s=message.engine_step_age_s,
        draining=message.draining,
        roles=tuple(message.roles),
        max_num_seqs=message.max_num_seqs,
        prefill_tokens_per_s=message.prefill_tokens_per_s,
    )


def update_from_pb(message: worker_pb2.WatchResponse) -> Update:
    """One message of a worker's index stream."""
    return Update(
        seq=message.seq,
        changes=[(event.kind, event.prefix_hash, event.tier) for event in message.events],
        snapshot=message.snapshot,
        snapshot_end=message.snapshot_end,
        digest=_digest_from_pb(message),
    )


def _digest_from_pb(message: worker_pb2.WatchResponse) -> IndexDigest | None:
    if not message.HasField("digest"):
        return None
    return IndexDigest(message.digest.num_entries, message.digest.sum)


def status_to_pb(member: Member, blocks_in_view: int) -> inference_pb2.WorkerStatus:
    """A worker as ListWorkers shows it."""
    stats = member.stats
    return inference_pb2.WorkerStatus(
        worker_id=member.record.worker_id,
        incarnation=member.record.incarnation,
        address=member.record.address,
        roles=member.roles,
        state=member.state.value,
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        waiting_tokens=stats.waiting_tokens,
        blocks_free=stats.blocks_free,
        blocks_cached=stats.blocks_cached,
        blocks_held=stats.blocks_held,
        blocks_in_view=blocks_in_view,
        transports=member.info.transports,
        pid=member.info.pid,
    )
