"""Between the transport's dataclasses and protobuf (rpc and transport do not know each other)."""

from __future__ import annotations

from common.transport.base import Endpoint, Extent
from pando.v1 import types_pb2


def extent_to_pb(extent: Extent) -> types_pb2.Extent:
    """An extent as it travels."""
    return types_pb2.Extent(
        incarnation=extent.incarnation,
        segment=extent.segment,
        offset=extent.offset,
        length=extent.length,
        generation=extent.generation,
        checksum=extent.checksum,
        tag=extent.tag,
    )


def extent_from_pb(message: types_pb2.Extent) -> Extent:
    """The inverse of `extent_to_pb`; nothing in it is trusted yet."""
    return Extent(
        message.incarnation,
        message.segment,
        message.offset,
        message.length,
        message.generation,
        message.checksum,
        message.tag,
    )


def endpoint_to_pb(endpoint: Endpoint) -> types_pb2.TransportEndpoint:
    """An endpoint as it travels."""
    return types_pb2.TransportEndpoint(
        driver=endpoint.driver,
        host_id=endpoint.host_id,
        incarnation=endpoint.incarnation,
        descriptor=endpoint.descriptor,
    )


def endpoint_from_pb(message: types_pb2.TransportEndpoint) -> Endpoint:
    """The inverse of `endpoint_to_pb`; nothing in it is trusted yet."""
    return Endpoint(message.driver, message.host_id, message.incarnation, message.descriptor)
