"""Read a ring buffer in bulk: a copy of many records is cheaper than a call per record.

Protocol: Documentation/bpf/ringbuf.rst. Memory: a page with the reader's position, a page with the writers' position,
and the data, mapped twice in a row so that no record is cut at the end. Each record follows 8 bytes, of which the first
4 are its length, with the highest bit set while it is being written.
"""

from __future__ import annotations

import mmap
import select
import struct
import threading
from collections.abc import Iterator

from whystall.bpf.errors import BpfError
from whystall.bpf.libbpf import Map

HEAD = 8
_BUSY, _DISCARDED = 1 << 31, 1 << 30
_length_at = struct.Struct("<I").unpack_from


class _MappedRing:
    """The mapped reader's end of the ring buffer `source`."""

    def __init__(self, source: Map) -> None:
        self._size = source.max_entries
        page = mmap.PAGESIZE
        try:
            self._reader = mmap.mmap(source.fd, page)
            self._writer = mmap.mmap(source.fd, page + 2 * self._size, prot=mmap.PROT_READ, offset=page)
        except OSError as error:
            raise BpfError(
                "load_failed", f"cannot map the ring buffer: {error.strerror}", "free some memory"
            ) from error
        self._data = memoryview(self._writer)[page:]
        self._positions = memoryview(self._reader)[:HEAD].cast("Q")
        self._written = memoryview(self._writer)[:HEAD].cast("Q")

    def close(self) -> None:
        """Unmap; idempotent."""
        for view in (self._data, self._positions, self._written):
            view.release()
        self._reader.close()
        self._writer.close()


class MixedRing(_MappedRing):
    """A ring buffer whose records have different lengths."""

    def __init__(self, source: Map) -> None:
        super().__init__(source)
        # readable after a wake-up only: the map's own descriptor is readable whenever there is a record
        self._epoll = select.epoll()
        self._epoll.register(source.fd, select.EPOLLIN)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the programs wake the reader."""
        return self._epoll.fileno()

    def take(self) -> bytes:
        """Return all complete records in a row, as `records` reads them."""
        begin, written = self._positions[0], self._written[0]
        _barrier()
        first = begin % self._size
        at, end, data = first, first + written - begin, self._data
        while at < end:
            (length,) = _length_at(data, at)
            if length & _BUSY:
                break
            at += HEAD + (length + 7 & ~7 & _DISCARDED - 1)
        if at == first:
            return b""
        _barrier()  # a record's content is valid only after its length was read
        taken = bytes(data[first:at])
        _barrier()
        self._positions[0] = begin + at - first
        return taken

    def consume(self) -> int:
        """Drop all complete records; return their number."""
        return sum(1 for _ in records(self.take()))

    def close(self) -> None:
        """Unmap; idempotent."""
        self._epoll.close()
        super().close()


def records(taken: bytes) -> Iterator[tuple[int, int]]:
    """Yield the position and the length of each record in bytes that `MixedRing.take` returned. Ends at a length that
    does not fit, as in damaged bytes."""
    at, end = 0, len(taken)
    while at + HEAD <= end:
        (length,) = _length_at(taken, at)
        at += HEAD
        size = length & _DISCARDED - 1
        if at + size > end:
            return
        if not length & _DISCARDED and size >= 4:
            yield at, size
        at += size + 7 & ~7


class BulkRing(_MappedRing):
    """A ring buffer whose records are all `record` bytes long (a multiple of 8)."""

    def __init__(self, source: Map, record: int) -> None:
        if record % 8:
            raise ValueError("records of a ring buffer are padded to 8 bytes")
        super().__init__(source)
        self._step = HEAD + record
        self._whole = record.to_bytes(4, "little")

    def take(self) -> bytes:
        """Return all complete records, each with its 8 bytes of header."""
        begin = self._positions[0]
        count = (self._written[0] - begin) // self._step
        if not count:
            return b""
        _barrier()
        start = begin % self._size
        words = self._data[start : start + count * self._step].cast("I")
        count = _leading(words[:: self._step // 4].tobytes(), self._whole)
        _barrier()  # a record's content is valid only after its length was read
        taken = bytes(self._data[start : start + count * self._step])
        _barrier()
        self._positions[0] = begin + count * self._step
        return taken


def _leading(words: bytes, word: bytes) -> int:
    """Return how many leading 4-byte `words` equal `word`."""
    low, high = 0, len(words) // 4
    if words == word * high:  # nearly always
        return high
    while low < high:  # the first `low` words equal it, the first `high` + 1 do not
        middle = (low + high + 1) // 2
        if words[low * 4 : middle * 4] == word * (middle - low):
            low = middle
        else:
            high = middle - 1
    return low


_fence = threading.Lock()


def _barrier() -> None:
    """Order memory accesses on machines that reorder them (aarch64): a lock's release and next acquisition do."""
    for _ in range(2):
        with _fence:
            pass
