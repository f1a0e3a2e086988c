"""The flags that describe a fleet and a policy, and what they make."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from bench.replay.fleet import FleetShape
from bench.replay.job import WorkerShape
from bench.replay.times import ServiceTimes
from services.router.planner import PlannerConfig

NEVER = 1 << 40
"""As the least number of tokens for a remote prefill: unified workers keep their prompts."""


def add_fleet_options(parser: argparse.ArgumentParser) -> None:
    """Add them."""
    shape, fleet = WorkerShape(), FleetShape()
    add = parser.add_argument
    add("--workers", type=int, default=fleet.num_unified, help="workers with both roles")
    add("--prefill", type=int, default=0, help="prefill workers; with --decode, instead of --workers")
    add("--decode", type=int, default=0, help="decode workers")
    add("--blocks", type=int, default=shape.num_blocks, help="KV blocks of a worker")
    add("--block-size", type=int, default=shape.block_size, help="tokens of a block; divides 512")
    add("--max-num-seqs", type=int, default=shape.max_num_seqs, help="most running requests of a worker")
    add("--max-step-tokens", type=int, default=shape.max_step_tokens, help="most tokens of a step")
    add("--event-delay-ms", type=float, default=1000 * fleet.event_delay_s, help="until a router sees a change")
    add("--stats-period-s", type=float, default=fleet.stats_period_s, help="between two looks at a worker's load")
    add("--peer-fetch", action="store_true", help="workers fetch blocks from those that hold them")
    add("--remote-prefill", action="store_true", help="unified workers compute prompts for each other")
    add("--share-when-scheduled", action="store_true", help="blocks are found before they are computed, as in a mock")
    add("--kv-token-bytes", type=int, default=fleet.kv_token_bytes, help="KV of one token")
    add("--expected-output-tokens", type=int, default=128, help="what the router expects a request to generate")
    for one in fields(ServiceTimes):
        flag = "--" + one.name.replace("_", "-")
        add(flag, type=float, default=one.default, metavar="MS", help="see bench/replay/times.py")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a field of the router's PlannerConfig")


def fleet_shape(args: argparse.Namespace) -> FleetShape:
    """The fleet that the flags describe."""
    split = args.prefill or args.decode
    return FleetShape(
        num_unified=0 if split else args.workers,
        num_prefill=args.prefill,
        num_decode=args.decode,
        event_delay_s=args.event_delay_ms / 1000,
        stats_period_s=args.stats_period_s,
        peer_fetch=args.peer_fetch,
        kv_token_bytes=args.kv_token_bytes,
        worker=WorkerShape(
            num_blocks=args.blocks,
            block_size=args.block_size,
            max_num_seqs=args.max_num_seqs,
            max_step_tokens=args.max_step_tokens,
            share_when_scheduled=args.share_when_scheduled,
            times=ServiceTimes(**{one.name: getattr(args, one.name) for one in fields(ServiceTimes)}),
        ),
    )


def planner_config(args: argparse.Namespace, policy: str) -> PlannerConfig:
    """The router's settings: what the topology asks for, then `--set`.

    Raises:
        ValueError: a setting is unknown or of the wrong type.
    """
    defaults = PlannerConfig()
    settings: dict[str, Any] = {"policy": policy}
    if not (args.prefill or args.decode or args.remote_prefill):
        settings["remote_prefill_min_tokens"] = NEVER
    if not args.peer_fetch:
        settings["max_sources"] = 0
    known = {one.name for one in fields(PlannerConfig)}
    for setting in args.set:
        key, _, value = setting.partition("=")
        if key not in known:
            raise ValueError(f"PlannerConfig has no {key}; it has {', '.join(sorted(known))}")
        settings[key] = type(getattr(defaults, key))(value)
    return PlannerConfig(**settings)
