"""`pando admin` before anything is asked, and after everything was answered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pando.cli.admin_calls import Answer
from pando.cli.admin_tables import human_bytes, show
from pando.cli.errors import BAD_INPUT, FAILED, CliError
from pando.cli.main import app
from pando.v1 import admin_pb2


def refusal(*arguments: str) -> CliError:
    """The error that ends a command."""
    error = CliRunner().invoke(app, ["admin", *arguments]).exception
    assert isinstance(error, CliError), error
    return error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("policy",), "nothing to change"),
        (("attach", "file", "--set", "path"), "'path' is not KEY=VALUE"),
        (("attach", "file", "--set", "=x"), "KEY=VALUE"),
        (("policy", "--prefetch", "speed=1"), "prefetch has no setting 'speed'"),
        (
            ("policy", "--prefetch", "min_tokens=many"),
            "prefetch min_tokens must be a whole number from 0 to 4294967295, not '",
        ),
        (
            ("policy", "--prefetch", "min-tokens=-5"),
            "prefetch min_tokens must be a whole number from 0 to 4294967295, not '-",
        ),
        (("attach", "file", "--prefetch", "deadline_s=soon"), "prefetch deadline_s must be a number, not 'soon'"),
        (("failpoint", "disarm"), "--all"),
        (("failpoint", "disarm", "l3.read", "--all"), "--all"),
        (("--token-file", "no-such-file", "tiers"), "no-such-file"),
        (("role", "127.0.0.1:1", "decode"), "--force"),
    ],
)
def test_bad_input_ends_before_anybody_is_asked(arguments: tuple[str, ...], says: str) -> None:
    error = refusal(*arguments)
    assert error.code == BAD_INPUT and says in str(error)


def test_a_cluster_that_does_not_run(tmp_path: Path) -> None:
    error = refusal("--run-dir", str(tmp_path), "tiers")
    assert error.code == FAILED and "nothing runs in" in str(error)


def shown(method: str, capsys: pytest.CaptureFixture[str], *answers: Answer, as_json: bool = False) -> str:
    show(method, answers, as_json=as_json)
    return capsys.readouterr().out


def test_every_method_has_something_to_show(capsys: pytest.CaptureFixture[str]) -> None:
    for name, method in admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods_by_name.items():
        message = getattr(admin_pb2, method.output_type.name)()
        assert shown(name, capsys, Answer("w1", message)).strip()
        assert json.loads(shown(name, capsys, Answer("w1", message), as_json=True)).keys() == {"w1"}


def test_tiers_are_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    l1 = admin_pb2.TierInfo(tier="l1", backend="memory", blocks_total=10, blocks_free=5, blocks_cached=3, blocks_held=2)
    l3 = admin_pb2.TierInfo(tier="l3", backend="file", objects=7, bytes=3 << 20, capacity_bytes=1 << 30)
    policies = admin_pb2.Policies(write_policy="write_back", prefetch=admin_pb2.Prefetch(policy="timeout"))
    answer = admin_pb2.GetTiersResponse(tiers=[l1, l3], policies=policies)
    text = shown("GetTiers", capsys, Answer("w1", answer), Answer("w2", answer))
    assert text.count("5/3/2") == 2 and text.count("3 MiB of 1 GiB") == 2
    assert "w2: write_back; eviction l1 , l2 ; prefetch: policy timeout" in text


def test_failpoints_of_several_workers_are_added_up(capsys: pytest.CaptureFixture[str]) -> None:
    point = admin_pb2.Failpoint(name="l3.read", kind="data", description="one object is read", hits=4, fired=1)
    armed = admin_pb2.ArmedFailpoint(name="l3.*", source="file", rule="30%flip")
    quiet = Answer("w1", admin_pb2.ListFailpointsResponse(failpoints=[point]))
    noisy = Answer("w2", admin_pb2.ListFailpointsResponse(failpoints=[point], armed=[armed]))
    assert "nothing is armed" in shown("ListFailpoints", capsys, quiet)
    lines = [line.split() for line in shown("ListFailpoints", capsys, quiet, noisy).splitlines()]
    assert ["l3.read", "data", "8", "2", "one", "object", "is", "read"] in lines
    assert ["w2", "l3.*", "file", "30%flip"] in lines
    left = Answer("w1", admin_pb2.DisarmFailpointResponse(num_disarmed=2, armed=[armed]))
    assert "still armed" in shown("DisarmFailpoint", capsys, left)


def test_who_refused_is_named_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    show("AttachStorage", [Answer("w1", admin_pb2.AttachStorageResponse()), Answer("w2", error="no")], as_json=False)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("w1: done\n", "w2: no\n")
    show("AttachStorage", [Answer("w2", error="no")], as_json=True)
    assert json.loads(capsys.readouterr().out) == {"w2": {"error": "no"}}


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 50, "3072 TiB")]
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert human_bytes(num_bytes) == text


def test_help_is_quick_to_import() -> None:
    code = "import sys, pando.cli.main; print([m for m in ('grpc', 'redis') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_roles_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    now = admin_pb2.GetRolesResponse(worker_id="w1", roles=["prefill"], num_prefill=1, num_decode=3, changed_s=7.2)
    listed = shown("GetRoles", capsys, Answer("w1", now))
    assert "prefill" in listed and "7 s ago" in listed
    done = shown("SetRole", capsys, Answer("w1", admin_pb2.SetRoleResponse(roles=now, before=["decode"])))
    assert done.strip() == "w1: decode -> prefill; 3 decode requests end or move"
