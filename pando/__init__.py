"""Pando: an LLM serving cluster in which every token's KV is computed once and reused everywhere.

For programs that use a cluster::

    import pando

    with pando.Client() as client:
        print(client.generate("The capital of France is", max_tokens=8).text)

`pando.errors` has what can go wrong; `pando.lang` is a language for programs that call the model many times. Names are
imported when they are used: importing this package costs nothing and needs none of the servers' libraries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pando.client.async_client import AsyncClient
    from pando.client.async_http import AsyncHttpClient
    from pando.client.async_stream import AsyncStream
    from pando.client.http import HttpClient
    from pando.client.retry import Retry
    from pando.client.stream import Stream
    from pando.client.sync_client import Client
    from pando.client.types import Chat, Choice, Chunk, Generation, ModelInfo, Options, Tokenized, Usage, WorkerInfo
    from pando.errors import PandoError

_HOMES = {
    "AsyncClient": "pando.client.async_client",
    "AsyncHttpClient": "pando.client.async_http",
    "AsyncStream": "pando.client.async_stream",
    "Chat": "pando.client.types",
    "Choice": "pando.client.types",
    "Chunk": "pando.client.types",
    "Client": "pando.client.sync_client",
    "Generation": "pando.client.types",
    "HttpClient": "pando.client.http",
    "ModelInfo": "pando.client.types",
    "Options": "pando.client.types",
    "PandoError": "pando.errors",
    "Retry": "pando.client.retry",
    "Stream": "pando.client.stream",
    "Tokenized": "pando.client.types",
    "Usage": "pando.client.types",
    "WorkerInfo": "pando.client.types",
}
__all__ = [
    "AsyncClient",
    "AsyncHttpClient",
    "AsyncStream",
    "Chat",
    "Choice",
    "Chunk",
    "Client",
    "Generation",
    "HttpClient",
    "ModelInfo",
    "Options",
    "PandoError",
    "Retry",
    "Stream",
    "Tokenized",
    "Usage",
    "WorkerInfo",
]


def __getattr__(name: str) -> Any:
    """A public name, imported now."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pando' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
