"""`--section.key value` for any service."""

from __future__ import annotations

import pytest

from common.base.config import SECTIONS as SERVICE_SECTIONS
from pando.cli.errors import BAD_INPUT, CliError
from pando.cli.flags import SECTIONS, parse_settings


def test_value_after_the_flag_or_after_an_equals_sign():
    assert parse_settings(["--worker.chunked-prefill-size", "256", "--log.level=debug"]) == (
        ("worker", "chunked_prefill_size", "256"),
        ("log", "level", "debug"),
    )


def test_a_switch_is_true():
    assert parse_settings(["--worker.report-memory-info", "--worker.num-threads", "1"]) == (
        ("worker", "report_memory_info", "true"),
        ("worker", "num_threads", "1"),
    )
    assert parse_settings(["--worker.report-memory-info"]) == (("worker", "report_memory_info", "true"),)


def test_a_negative_value():
    assert parse_settings(["--worker.chunked-prefill-size", "-1"])[0][2] == "-1"


def test_an_equals_sign_inside_the_value():
    assert parse_settings(["--registry.cluster=a=b"])[0][2] == "a=b"


@pytest.mark.parametrize("arguments", [["--prot", "1"], ["--nosuch.key", "1"], ["--worker.", "1"], ["--worker", "1"]])
def test_an_unknown_flag_is_named(arguments: list[str]):
    with pytest.raises(CliError, match=f"unknown flag {arguments[0]}") as caught:
        parse_settings(arguments)
    assert caught.value.code == BAD_INPUT


def test_a_stray_argument_is_named():
    with pytest.raises(CliError, match="unexpected argument 'now'"):
        parse_settings(["now"])


@pytest.mark.parametrize(
    ("flag", "fix"),
    [
        ("--gateway.port", "use --port"),
        ("--worker.model-path", "use --model-path"),
        ("--registry.url", "use --registry"),
        ("--log.format", "set by pando up"),
    ],
)
def test_what_pando_up_sets_itself_is_refused(flag: str, fix: str):
    with pytest.raises(CliError, match=fix):
        parse_settings([flag, "1"])


def test_sections_are_those_of_the_services():
    assert set(SECTIONS) <= set(SERVICE_SECTIONS)
