"""Failpoints: what is armed happens, at the wanted rate and the same every time; what is not armed never does."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from common.base.errors import InvalidRequest, PeerLost, Unsupported
from common.base.failpoint_files import MAX_FILES
from common.base.failpoint_metrics import FailpointCollector
from common.base.failpoint_rules import MAX_TEXT_CHARS, Action, Fault, Rule, parse_rules
from common.base.failpoints import DISABLED, POLL_S, Failpoints, Kind, Source, inflict, make_failpoints


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def failpoints(folder: Path | None = None, **options: object) -> Failpoints:
    points = Failpoints(folder, **options)  # type: ignore[arg-type]
    points.register("l3.read", Kind.DATA, "one object is read")
    points.register("l3.put", Kind.DATA, "one object is written")
    points.register("rpc.Lend", Kind.CALL, "a call")
    return points


def actions(points: Failpoints, name: str, hits: int) -> list[Action | None]:
    faults = [points.hit(name) for _ in range(hits)]
    return [fault.action if fault else None for fault in faults]


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("truncate", (Rule(Action.TRUNCATE),)),
        ("30%flip", (Rule(Action.FLIP, percent=30),)),
        ("3*fail", (Rule(Action.FAIL, count=3),)),
        ("10%delay(0.5)", (Rule(Action.DELAY, percent=10, delay_s=0.5),)),
        ("0.5%2*drop", (Rule(Action.DROP, percent=0.5, count=2),)),
        ("flip(recompute)", (Rule(Action.FLIP, recompute=True),)),
        ("flip(recompute, seed=7)", (Rule(Action.FLIP, recompute=True, seed=7),)),
        (" 2*off ;\n fail(seed=9)\n", (Rule(Action.OFF, count=2), Rule(Action.FAIL, seed=9))),
        ("1*delay(2,seed=3)", (Rule(Action.DELAY, count=1, delay_s=2, seed=3),)),
    ],
)
def test_rules_are_read_and_written(text: str, rules: tuple[Rule, ...]) -> None:
    assert parse_rules(text) == rules
    assert parse_rules(";".join(map(str, rules))) == rules


@pytest.mark.parametrize(
    "text",
    [
        *("", " ; ", "explode", "30flip", "%flip", "130%flip", "0%fail", "1.2.3%fail", "-1*fail", "fail(2)", "delay"),
        *("delay()", "delay(x)", "delay(0)", "delay(inf)", "delay(nan)", "delay(1e9)", "delay(1,2)", "flip(twice)"),
        *("truncate(recompute)", "fail(seed=)", "fail(seed=x)", "fail(seed=7,recompute)", "fail;;boom", "fail(seed=٣)"),
        *("fail;" * 40, "x" * (MAX_TEXT_CHARS + 1), "fail)", "((fail", "9" * 30 + "*fail"),
    ],
)
def test_bad_rules_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_rules(text)
    assert caught.value.param == "rule"


def test_nothing_happens_unless_armed() -> None:
    points = failpoints()
    assert actions(points, "l3.read", 100) == [None] * 100
    assert [(p.name, p.hits, p.fired) for p in points.points()] == [
        ("l3.put", 0, 0),
        ("l3.read", 100, 0),
        ("rpc.Lend", 0, 0),
    ]


def test_counts_run_out_and_the_next_rule_follows() -> None:
    points = failpoints()
    points.arm("l3.read", "2*off;1*fail;2*drop")
    assert actions(points, "l3.read", 7) == [None, None, Action.FAIL, Action.DROP, Action.DROP, None, None]
    assert next(p.fired for p in points.points() if p.name == "l3.read") == 3
    assert actions(points, "l3.put", 3) == [None] * 3


def test_probabilities_are_kept() -> None:
    points = failpoints()
    points.arm("l3.read", "30%fail")
    share = sum(action is not None for action in actions(points, "l3.read", 10_000)) / 10_000
    assert abs(share - 0.3) < 0.02


def test_the_same_hits_have_the_same_faults() -> None:
    def run(seed: int, text: str) -> list[Fault | None]:
        points = failpoints(seed=seed)
        points.arm("l3.read", text)
        return [points.hit("l3.read") for _ in range(200)]

    assert run(1, "30%flip") == run(1, "30%flip")
    assert run(1, "30%flip") != run(2, "30%flip")
    assert run(1, "30%flip(seed=5)") == run(2, "30%flip(seed=5)")


def test_a_wildcard_means_all_that_can_suffer_it() -> None:
    points = failpoints()
    points.arm("*", "flip")
    assert actions(points, "l3.put", 1) == actions(points, "l3.read", 1) == [Action.FLIP]
    assert actions(points, "rpc.Lend", 1) == [None]
    points.arm("l3.*", "1*fail")
    points.disarm("*")
    assert actions(points, "l3.put", 1) + actions(points, "l3.read", 1) == [Action.FAIL, None]


def test_arming_is_checked_and_changes_nothing_when_refused() -> None:
    points = failpoints()
    points.arm("l3.read", "fail")
    for name, text, param, says in [
        ("l3.reed", "fail", "name", "l3.put, l3.read, rpc.Lend"),
        ("l4.*", "fail", "name", "known"),
        ("rpc.Lend", "flip", "rule", "no payload"),
        ("l3.read", "explode", "rule", "explode"),
    ]:
        with pytest.raises(InvalidRequest, match=says) as caught:
            points.arm(name, text)
        assert caught.value.param == param
    assert [(armed.name, armed.text) for armed in points.armed()] == [("l3.read", "fail")]
    points.arm("l3.read", "drop")
    assert [(armed.name, armed.text) for armed in points.armed()] == [("l3.read", "drop")]


def test_disarming() -> None:
    points = failpoints()
    points.arm("l3.read", "fail")
    points.arm("l3.*", "drop")
    points.disarm("l3.read")
    assert actions(points, "l3.read", 1) == [Action.DROP]
    with pytest.raises(InvalidRequest, match="not armed"):
        points.disarm("l3.read")
    assert points.disarm_all() == 1
    assert actions(points, "l3.read", 1) == [None]


def test_a_name_means_one_thing() -> None:
    points = failpoints()
    points.register("l3.read", Kind.DATA, "one object is read")
    with pytest.raises(AssertionError):
        points.register("l3.read", Kind.CALL, "something else")


def test_the_disabled_one_cannot_be_armed() -> None:
    DISABLED.register("l3.read", Kind.DATA, "one object is read")
    with pytest.raises(Unsupported):
        DISABLED.arm("l3.read", "fail")
    assert DISABLED.hit("l3.read") is None
    assert not DISABLED.enabled and DISABLED.points() == [] and DISABLED.armed() == []


def test_a_process_has_failpoints_only_when_told(tmp_path: Path) -> None:
    assert make_failpoints(False, None) is make_failpoints(False, Path("")) is DISABLED
    assert make_failpoints(True, None).enabled and make_failpoints(False, tmp_path).enabled


def test_files_arm_and_disarm_without_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    points = failpoints(tmp_path, clock=clock)
    assert points.hit("l3.read") is None
    (tmp_path / "l3.read").write_text("fail\n")
    assert points.hit("l3.read") is None, "looked at the folder before its time"
    clock.now_s += POLL_S
    assert actions(points, "l3.read", 1) == [Action.FAIL]
    assert [(armed.source, armed.text) for armed in points.armed()] == [(Source.FILE, "fail")]
    with pytest.raises(InvalidRequest, match="remove the file"):
        points.disarm("l3.read")
    (tmp_path / "l3.read").write_text("truncate")
    clock.now_s += POLL_S
    assert actions(points, "l3.read", 1) == [Action.TRUNCATE]
    (tmp_path / "l3.read").unlink()
    clock.now_s += POLL_S
    assert actions(points, "l3.read", 1) == [None]


def test_an_unchanged_file_keeps_its_count(tmp_path: Path) -> None:
    clock = FakeClock()
    (tmp_path / "l3.*").write_text("2*fail")
    points = failpoints(tmp_path, clock=clock)
    for expected in (Action.FAIL, Action.FAIL, None, None):
        assert actions(points, "l3.read", 1) == [expected]
        clock.now_s += POLL_S


def test_a_bad_file_is_logged_once_and_arms_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    (tmp_path / "l3.read").write_text("explode")
    (tmp_path / "l3.put").write_bytes(b"\xff\xfe")
    (tmp_path / "nothing.here").write_text("fail")
    (tmp_path / ".half-written").write_text("expl")
    (tmp_path / "folder").mkdir()
    points = failpoints(tmp_path, clock=clock)
    with capture_logs() as logs:
        for _ in range(5):
            assert points.hit("l3.read") is None and points.hit("l3.put") is None
            clock.now_s += POLL_S
    assert sorted(log["why"][:20] for log in logs) == sorted(
        ["'explode' is no rule", "'utf-8' codec can't ", "no failpoint is call"]
    )


def test_a_file_may_wait_for_its_component(tmp_path: Path) -> None:
    (tmp_path / "late.point").write_text("fail")
    points = failpoints(tmp_path)
    with capture_logs():
        assert points.hit("l3.read") is None
    points.register("late.point", Kind.CALL, "registered after the first look")
    assert actions(points, "late.point", 1) == [Action.FAIL]


def test_a_folder_may_come_and_go(tmp_path: Path) -> None:
    clock, folder = FakeClock(), tmp_path / "later"
    points = failpoints(folder, clock=clock)
    assert points.hit("l3.read") is None
    folder.mkdir()
    for number in range(MAX_FILES + 10):
        (folder / f"l3.read{number}").touch()
    (folder / "l3.read").write_text("fail")
    clock.now_s += POLL_S
    assert actions(points, "l3.read", 1) == [Action.FAIL]
    for file in folder.iterdir():
        os.unlink(file)
    folder.rmdir()
    clock.now_s += POLL_S
    assert points.hit("l3.read") is None


def test_damage_is_one_bit_or_a_cut() -> None:
    payload = bytes(range(256))
    for draw in (0.0, 0.5, 0.999999):
        flipped = Fault(Action.FLIP, draw=draw).damage(payload)
        assert sum((a ^ b).bit_count() for a, b in zip(payload, flipped, strict=True)) == 1
        cut = Fault(Action.TRUNCATE, draw=draw).damage(payload)
        assert len(cut) < 256 and payload.startswith(cut)
    assert Fault(Action.FLIP).damage(b"") == Fault(Action.TRUNCATE).damage(b"") == b""
    assert Fault(Action.FAIL).damage(payload) == payload
    target = bytearray(payload)
    Fault(Action.FLIP, draw=0.25).flip(memoryview(target))
    assert target == Fault(Action.FLIP, draw=0.25).damage(payload) != payload


async def test_inflicting_a_fault() -> None:
    await inflict(None, lambda: PeerLost("never made"))
    await inflict(Fault(Action.DELAY, delay_s=0.0), lambda: PeerLost("never made"))
    await inflict(Fault(Action.FLIP), lambda: PeerLost("never made"))
    with pytest.raises(PeerLost):
        await inflict(Fault(Action.FAIL), lambda: PeerLost("on purpose"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await inflict(Fault(Action.DROP), lambda: PeerLost("never made"))


def test_counters_are_metrics() -> None:
    registry, points = CollectorRegistry(), failpoints()
    FailpointCollector(points, registry)
    points.arm("l3.read", "1*fail")
    actions(points, "l3.read", 3)
    assert registry.get_sample_value("pando_failpoint_hits_total", {"failpoint": "l3.read"}) == 3
    assert registry.get_sample_value("pando_failpoint_faults_total", {"failpoint": "l3.read"}) == 1
    assert registry.get_sample_value("pando_failpoint_faults_total", {"failpoint": "l3.put"}) == 0
