"""Without a library the driver says what to install, and the others go on."""

from __future__ import annotations

import ctypes
import sys

import pytest

from common.base.errors import Unsupported
from common.transport import ucx_library
from common.transport.select import TransportConfig, TransportSet, make_drivers
from common.transport.ucx import UcxConfig, UcxTransport
from common.transport.ucx_library import load_library


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with neither libucx0 nor the wheel."""

    def missing(name: str, *_: object) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setitem(sys.modules, "libucx", None)


@pytest.mark.usefixtures("no_library")
def test_a_missing_library_is_unsupported_and_says_what_to_install() -> None:
    with pytest.raises(Unsupported, match="pip install libucx-cu12"):
        load_library()


@pytest.mark.usefixtures("no_library")
async def test_the_other_drivers_go_on() -> None:
    transports = TransportSet(make_drivers(TransportConfig(("shm", "ucx", "tcp")), "h", 1))
    await transports.start()
    assert transports.names == ["shm", "tcp"]
    assert "libucp" in transports.missing["ucx"]
    await transports.close()


def test_an_old_library_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: object())
    with pytest.raises(Unsupported, match=r"UCX 1\.17"):
        load_library()


def test_a_crashing_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ucx_library, "OLDEST_VERSION", (99, 0))
    with pytest.raises(Unsupported, match=r"found 1\.\d+\.\d+"):
        load_library()


def test_a_named_library_is_the_only_one_tried() -> None:
    with pytest.raises(Unsupported, match="/no/such/libucp"):
        load_library("/no/such/libucp.so")


@pytest.mark.parametrize(
    "config",
    [UcxConfig(host="203.0.113.7"), UcxConfig(options={"NO_SUCH_OPTION": "1"}), UcxConfig(devices="no-such-device")],
    ids=["address", "option", "device"],
)
async def test_a_bad_setting_is_unsupported(config: UcxConfig) -> None:
    driver = UcxTransport("h", 1, config)
    with pytest.raises(Unsupported):
        await driver.start()
    await driver.close()
