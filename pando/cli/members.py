"""Who is registered in a cluster, for the commands that speak to its processes themselves."""

from __future__ import annotations

from pathlib import Path

from common.base.errors import Unavailable
from common.rpc.registry import WORKER, RegistryReader
from pando.cli.errors import CliError
from pando.cli.run_folder import RunFolder

ALL = "all"
_REGISTRY_S = 3.0


def registry_of(run_dir: Path) -> str:
    """URL of the registry of the local cluster that runs in a folder.

    Raises:
        CliError: nothing runs there.
    """
    folder = RunFolder(run_dir)
    state = folder.running()
    if state is None:
        raise CliError(f"nothing runs in {folder.path}", fix="start it with pando up, or give --run-dir or --registry")
    return state.registry


async def registered(url: str, cluster: str, flag: str, kind: str = WORKER) -> dict[str, str]:
    """host:port of every process of a kind, by its id.

    Args:
        url: of the registry.
        cluster: name of the cluster.
        flag: the option that names a process without a registry, for the error.
        kind: as in `common.rpc.registry`.

    Raises:
        CliError: the registry does not answer.
    """
    reader = RegistryReader(url, cluster, _REGISTRY_S, kind)
    try:
        return {record.worker_id: record.address for record in await reader.list_workers()}
    except Unavailable as error:
        raise CliError(error.message, fix=f"is it up? {flag} HOST:PORT needs no registry") from error
    finally:
        await reader.close()
