"""Between the store's own types and protobuf: node to message."""

from __future__ import annotations

from common.cache import kvstore_wire as wire
from common.cache.kvstore_placement import Candidate
from pando.v1 import kvstore_pb2, types_pb2
from services.kvstore.inventory import Page
from services.kvstore.memory import Object


def node_to_pb(node: Candidate) -> kvstore_pb2.StoreNode:
    """How to call a node."""
    return kvstore_pb2.StoreNode(node_id=node.node_id, address=node.address)


def key_to_pb(name: bytes) -> types_pb2.BlockKey:
    """The key of a name."""
    key = wire.key_of(name)
    return types_pb2.BlockKey(namespace=key.namespace, prefix_hash=key.prefix_hash, part=key.part)


def object_to_pb(one: Object) -> kvstore_pb2.StoredObject:
    """An object as operators see it."""
    return kvstore_pb2.StoredObject(
        key=key_to_pb(one.name),
        num_bytes=one.length,
        in_memory=one.run is not None,
        on_disk=one.on_disk,
        soft_pin=one.soft_pinned,
        num_pins=one.pins,
    )


def page_to_pb(page: Page, incarnation: int, space: kvstore_pb2.NodeSpace) -> kvstore_pb2.WatchInventoryResponse:
    """A page of an inventory, with the room that the node has now."""
    return kvstore_pb2.WatchInventoryResponse(
        incarnation=incarnation,
        seq=page.seq,
        snapshot=page.snapshot,
        snapshot_end=page.snapshot_end,
        added=wire.pack_names(page.added),
        removed=wire.pack_names(page.removed),
        space=space,
    )


def space_to_pb(host_id: str, capacity_bytes: int, used_bytes: int) -> kvstore_pb2.NodeSpace:
    """The room of a node."""
    return kvstore_pb2.NodeSpace(
        host_id=host_id, capacity_bytes=capacity_bytes, free_bytes=max(0, capacity_bytes - used_bytes)
    )
