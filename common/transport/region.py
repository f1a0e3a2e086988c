"""Memory that peers on this host may map and peers elsewhere may ask for, one extent per KV block.

A region is one memfd, mapped shared. Pages come into being when first touched, so a large region costs nothing at
start, and nothing of it outlives the processes that map it, not even after kill -9::

    page 0..k   header (magic, version, flags, incarnation, num_extents, extent_bytes), then a u64 generation per extent
    page k+1..  data: num_extents * extent_bytes, extent i at i * extent_bytes

Invariants: only the owner writes (the kernel refuses every other writable mapping: F_SEAL_FUTURE_WRITE) and the size
never changes (F_SEAL_SHRINK), so a reader's mapping can neither change the data nor fault. The owner bumps an extent's
generation *before* it writes other bytes into it; a reader that saw the same generation before and after its copy and
the right checksum has the bytes that were lent.

In a *spanning* region extents are pages: what is lent begins on one and may run over those after it, and the generation
of the first page stands for all of it. Its owner bumps that one before any of these pages get other bytes.

It does not know what the extents hold, who was lent them, or how they travel.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import struct
from dataclasses import dataclass
from types import TracebackType

from common.base.errors import InvalidRequest, Leg

_MAGIC = b"PANDOREG"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQQ")  # magic, version, flags, incarnation, num_extents, extent_bytes
_SPANNING = 1
_INCARNATION_OFFSET = 16
_GENERATIONS_OFFSET = 64
_F_SEAL_FUTURE_WRITE = 0x0010  # linux/fcntl.h; the fcntl module names it from Python 3.13 on
_OWNER_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE


@dataclass(slots=True, frozen=True)
class Geometry:
    """Where the parts of a region lie; sizes in bytes. With `spanning`, what is lent may cross to the next extent."""

    num_extents: int
    extent_bytes: int
    spanning: bool = False

    @property
    def data_offset(self) -> int:
        """First byte of the data, on a page boundary."""
        end = _GENERATIONS_OFFSET + 8 * self.num_extents
        return -(-end // mmap.PAGESIZE) * mmap.PAGESIZE

    @property
    def data_bytes(self) -> int:
        """Size of the data."""
        return self.num_extents * self.extent_bytes

    def extent_of(self, offset: int, length: int) -> int:
        """The extent whose generation stands for `[offset, offset + length)` of the data.

        Raises:
            InvalidRequest: the span is empty, out of bounds, or crosses from one extent into another; where spans may
                cross, it does not begin with an extent.
        """
        if length <= 0 or offset < 0 or offset + length > self.data_bytes:
            raise _refused(f"{length} bytes at {offset} are not within {self.data_bytes} bytes", "out_of_bounds")
        index = offset // self.extent_bytes
        if self.spanning:
            if offset != index * self.extent_bytes:
                raise _refused(f"{length} bytes at {offset} begin within an extent", "out_of_bounds")
        elif offset + length > (index + 1) * self.extent_bytes:
            raise _refused(f"{length} bytes at {offset} cross an extent of {self.extent_bytes} bytes", "out_of_bounds")
        return index


class Region:
    """The owner's side: writable, and the only place that writes.

    Attributes:
        geometry: sizes.
        data: writable view of the data bytes; may be wrapped (`torch.frombuffer(region.data, ...)`).
        fd: the memfd, owned by the region.
    """

    def __init__(self, fd: int, mapping: mmap.mmap, geometry: Geometry) -> None:
        """Take ownership of `fd` and `mapping`; use `Region.create`."""
        self.fd = fd
        self.geometry = geometry
        self._mapping = mapping
        whole = memoryview(mapping)
        self._generations = whole[_GENERATIONS_OFFSET : _GENERATIONS_OFFSET + 8 * geometry.num_extents].cast("Q")
        self.data = whole[geometry.data_offset :]
        self._closed = False

    @classmethod
    def create(cls, num_extents: int, extent_bytes: int, *, spanning: bool = False) -> Region:
        """Reserve address space for `num_extents * extent_bytes` bytes, all zero, none of it touched yet.

        With `spanning`, extents are pages that are lent in runs.

        Raises:
            OSError: the kernel has no room for the mapping.
        """
        assert num_extents > 0 and extent_bytes > 0, (num_extents, extent_bytes)
        geometry = Geometry(num_extents, extent_bytes, spanning)
        size = geometry.data_offset + geometry.data_bytes
        fd = os.memfd_create("pando-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            mapping = mmap.mmap(fd, size, flags=mmap.MAP_SHARED)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _OWNER_SEALS)
        except BaseException:
            os.close(fd)
            raise
        flags = _SPANNING if spanning else 0
        _HEADER.pack_into(mapping, 0, _MAGIC, _VERSION, flags, 0, num_extents, extent_bytes)
        return cls(fd, mapping, geometry)

    @property
    def num_extents(self) -> int:
        """How many extents there are."""
        return self.geometry.num_extents

    @property
    def extent_bytes(self) -> int:
        """Size of each extent."""
        return self.geometry.extent_bytes

    def extent(self, index: int) -> tuple[int, int]:
        """(offset, length) of an extent, in bytes from the start of `data`."""
        assert 0 <= index < self.num_extents, (index, self.num_extents)
        return index * self.extent_bytes, self.extent_bytes

    def generation(self, index: int) -> int:
        """How often the extent has been reused."""
        return self._generations[index]

    @property
    def generations(self) -> memoryview:
        """Writable view of all generations, one u64 per extent, for an owner that counts reuses itself."""
        return self._generations

    def bump_generation(self, index: int) -> int:
        """Say that the extent is about to hold other bytes; returns the new generation.

        Call it before the first such byte is written, from the one thread that owns the region's blocks.
        """
        self._generations[index] = (self._generations[index] + 1) & 0xFFFF_FFFF_FFFF_FFFF
        return self._generations[index]

    def stamp(self, incarnation: int) -> None:
        """Write the owner's incarnation into the header, where same-host readers check it."""
        struct.pack_into("<Q", self._mapping, _INCARNATION_OFFSET, incarnation)

    def close(self) -> None:
        """Give the memory back; where tensors still wrap it, the last of them does. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        os.close(self.fd)
        try:
            self._generations.release()
            self.data.release()
            self._mapping.close()
        except BufferError:
            return  # somebody still looks at the bytes: unmapped together with the last view

    def __enter__(self) -> Region:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class RegionView:
    """A same-host reader's side of a peer's region: mapped read-only, trusted for nothing but its size.

    Attributes:
        geometry: sizes, checked against the size of the memfd.
        incarnation: the owner's, as stamped when it was mapped.
        data: read-only view of the data bytes.
    """

    def __init__(self, fd: int) -> None:
        """Map the memfd behind `fd`; `fd` stays the caller's and may be closed afterwards.

        Raises:
            InvalidRequest: it is not a sealed region of this version.
        """
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size < mmap.PAGESIZE:
            raise _refused("the peer's descriptor is not a region", "bad_region")
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:
            raise _refused("the peer's region is not a memfd", "bad_region") from error
        if not seals & fcntl.F_SEAL_SHRINK:
            raise _refused("the peer's region could shrink under its readers", "bad_region")
        mapping = mmap.mmap(fd, info.st_size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        magic, version, flags, self.incarnation, num_extents, extent_bytes = _HEADER.unpack_from(mapping, 0)
        self.geometry = Geometry(num_extents, extent_bytes, flags == _SPANNING)
        expected = self.geometry.data_offset + self.geometry.data_bytes
        known = magic == _MAGIC and version == _VERSION and flags in (0, _SPANNING)
        if not known or expected != info.st_size:
            raise _refused(f"the peer's region is not of version {_VERSION} or has a wrong size", "bad_region")
        whole = memoryview(mapping)
        self._generations = whole[_GENERATIONS_OFFSET : _GENERATIONS_OFFSET + 8 * num_extents].cast("Q")
        self.data = whole[self.geometry.data_offset :]

    def generation(self, index: int) -> int:
        """The owner's count of reuses of an extent, read anew from shared memory."""
        return self._generations[index]


def _refused(message: str, reason: str) -> InvalidRequest:
    return InvalidRequest(message, reason=reason, leg=Leg.TRANSFER)
