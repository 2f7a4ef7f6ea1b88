"""`hybrid_open`: a file whose requests go through the page cache or bypass it, as the policy decides for each.

The object is raw and unbuffered, like ``open(path, mode, buffering=0)``: each call is one request to the kernel.
Wrap it in an ``io.BufferedReader`` or ``io.BufferedWriter`` if a program makes many small requests; with a buffer as
large as direct requests (some MiB), these go direct too.

Coherence. Both ways see the same bytes, within this object, between objects and between processes: the kernel writes
dirty pages back before it reads their range direct, and drops the pages of a range that is written direct. An ``mmap``
of the file, here or elsewhere, sees completed direct writes; its changes during a direct write to the same page may be
lost, so do not do both at once. Two writers to one range at the same moment leave
either's bytes, as with any file. Only `HybridFile.fsync` makes data durable, direct or not.

Errors. A direct write reports its error at once; a buffered one possibly only at `HybridFile.fsync`.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import stat
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from whystall.tools.hybrid_io import layout, library
from whystall.tools.hybrid_io.memory import block_of, new_bytes
from whystall.tools.hybrid_io.plain_file import PlainFile
from whystall.tools.hybrid_io.policy import Policy, policy_of
from whystall.tools.hybrid_io.status import Counters, FileStatus, counters_of, status_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_WAIT = 0.0005  # seconds between two checks for requests of other threads
_LARGE = 1 << 20  # bytes from which the size of the file is queried before allocating
_TAIL = 1 << 16  # bytes requested at once beyond the known end
_warned: set[str] = set()  # warnings given
_open_files: weakref.WeakSet[HybridFile] = weakref.WeakSet()


def hybrid_open(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    mode: str = "rb",
    policy: Policy | Mapping[str, object] | str | None = None,
    *,
    direct: bool = False,
) -> HybridFile | PlainFile:
    """Open a file for hybrid I/O. `mode` is one of r, w, a, x, with "+" and "b" as for ``open``; never text.

    `policy` is a `Policy`, some of its settings by name, or a mode ("auto", "buffered", "direct"). `direct`
    makes every request direct if possible, like O_DIRECT.
    On a file system without direct I/O everything is buffered, as `HybridFile.status` reports. Without the engine the
    result is a `PlainFile` with the same methods, with one ``RuntimeWarning``: a missing optimisation must not fail a
    training job.
    Raises ``ValueError`` for a bad mode or policy, ``OSError`` with errno and filename as ``open`` does.
    """
    flags = flags_of(mode)
    settings = policy_of(policy)
    made = settings.struct()
    try:
        engine = library.load()
    except library.Unavailable as error:
        note = str(error)
        if note not in _warned:
            _warned.add(note)
            warnings.warn(f"{note}; files are plain and buffered until then", RuntimeWarning, stacklevel=2)
        return PlainFile(path, mode, note)
    return HybridFile(engine, path, mode, flags | (os.O_DIRECT if direct else 0), made)


def flags_of(mode: str) -> int:
    """Return the flags of open(2) for a mode. Raises ``ValueError``."""
    letters = sorted(mode.replace("b", "", 1).replace("+", "", 1))
    if len(letters) != 1 or letters[0] not in "rwax":
        raise ValueError(f"mode is one of r, w, a, x, with + and b, not {mode!r} (text: wrap it in io.TextIOWrapper)")
    flags = {
        "r": 0,
        "w": os.O_CREAT | os.O_TRUNC,
        "a": os.O_CREAT | os.O_APPEND,
        "x": os.O_CREAT | os.O_EXCL,
    }[letters[0]]
    access = os.O_RDWR if "+" in mode else os.O_RDONLY if letters[0] == "r" else os.O_WRONLY
    return flags | access | os.O_CLOEXEC


def counters() -> Counters:
    """Return the counters of this process so far. Raises `library.Unavailable`."""
    return counters_of(library.load().hy_counters().contents)


class HybridFile(io.RawIOBase):
    """A raw file of the engine, from `hybrid_open`. Thread-safe as a descriptor is: `read`, `write` and `seek` share
    the position; `pread` and `pwrite` do not use it and run in parallel.

    Unlike ``io.FileIO``, `read`, `readinto` and `write` transfer all bytes, except at the end of the file. A failed
    write raises and restores the position (with "a", appended data stays).
    """

    _handle: int | None = None

    def __init__(self, engine: ctypes.CDLL, path: Any, mode: str, flags: int, policy: layout.Policy) -> None:
        self.name = path
        self.mode = mode
        self._engine = engine
        self._readable = flags & os.O_ACCMODE != os.O_WRONLY
        self._writable = flags & os.O_ACCMODE != os.O_RDONLY
        self._append = bool(flags & os.O_APPEND)
        self._regular = True
        self._busy: list[int] = []  # the threads that are in the engine with this file
        encoded = os.fsencode(path)
        if b"\0" in encoded:
            raise ValueError("embedded null byte in the path")
        while not (handle := engine.hy_open(encoded, flags, 0o666, ctypes.byref(policy))):
            if ctypes.get_errno() != errno.EINTR:
                self._fail()
        self._handle = handle
        _open_files.add(self)
        kind = os.fstat(self.fileno()).st_mode
        self._regular = stat.S_ISREG(kind)
        if stat.S_ISDIR(kind):
            self.close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if self._append and self.seekable():
            self.seek(0, os.SEEK_END)

    # -- properties

    def readable(self) -> bool:
        """Return whether it was opened for reading."""
        self._check()
        return self._readable

    def writable(self) -> bool:
        """Return whether it was opened for writing."""
        self._check()
        return self._writable

    def seekable(self) -> bool:
        """Return whether it has a position, unlike pipes and terminals."""
        try:
            self.seek(0, os.SEEK_CUR)
        except OSError:
            return False
        return True

    def fileno(self) -> int:
        """Return the buffered descriptor, which has the file's position."""
        return int(self._call(self._engine.hy_fileno))

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return os.isatty(self.fileno())

    def status(self) -> FileStatus:
        """Return the engine's properties and counters of the file."""
        now = layout.Status()
        self._call(self._engine.hy_status, ctypes.byref(now))
        return status_of(now)

    def __repr__(self) -> str:
        """Return a representation like that of ``io.FileIO``."""
        state = "closed" if self._handle is None else f"mode={self.mode!r}"
        return f"<{type(self).__module__}.{type(self).__qualname__} name={self.name!r} {state}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise: another process does not have the descriptor."""
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    # -- reading

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, fewer at the end of the file; the rest if negative or None."""
        if size is None or size < 0:
            return self.readall()
        return self._read(size, layout.POSITION)

    def readall(self) -> bytes:
        """Read up to the end of the file."""
        parts = [self._read(max(self._rest(layout.POSITION), 1), layout.POSITION)]
        while parts[-1]:
            parts.append(self._read(_TAIL, layout.POSITION))
        return parts[0] if len(parts) <= 2 else b"".join(parts)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill `buffer`; return the number of bytes, fewer only at the end of the file."""
        return self.preadinto(buffer, layout.POSITION)

    def pread(self, size: int, offset: int) -> bytes:
        """Read `size` bytes from `offset`; the position is not used."""
        if size < 0:
            raise ValueError(f"the size is not negative, but {size}")
        return self._read(size, _checked(offset))

    def preadinto(self, buffer: WriteableBuffer, offset: int) -> int:
        """Fill `buffer` from `offset`; -1 is the position."""
        if not self._readable:
            self._not("reading")
        with block_of(buffer, writable=True) as (address, size):
            return self._all(self._engine.hy_read, address, size, offset)

    def _read(self, size: int, offset: int) -> bytes:
        if not self._readable:
            self._not("reading")
        if size >= _LARGE and self._regular:
            size = min(size, max(self._rest(offset), 1))
        if not size:
            self._check()
            return b""
        made, address = new_bytes(size)
        got = self._all(self._engine.hy_read, address, size, offset)
        return made if got == size else made[:got]

    def _rest(self, offset: int) -> int:
        """Return the number of bytes from `offset` to the current end of the file."""
        about = os.fstat(self.fileno())
        if not self._regular:
            return _TAIL
        return about.st_size - (self.tell() if offset == layout.POSITION else offset)

    # -- writing

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of `data` at the position; return its number of bytes."""
        return self._write(data, layout.POSITION)

    def pwrite(self, data: ReadableBuffer, offset: int) -> int:
        """Write all of `data` at `offset`; the position is not used. With "a" it goes to the end, as in the kernel."""
        return self._write(data, _checked(offset))

    def _write(self, data: ReadableBuffer, offset: int) -> int:
        if not self._writable:
            self._not("writing")
        with block_of(data) as (address, size):
            return self._all(self._engine.hy_write, address, size, offset)

    # -- other methods

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position; return it."""
        return int(self._call(self._engine.hy_seek, offset, whence))

    def tell(self) -> int:
        """Return the position."""
        return self.seek(0, os.SEEK_CUR)

    def truncate(self, size: int | None = None, /) -> int:
        """Resize the file, by default to the position; return its size. The position stays."""
        if not self._writable:
            self._not("writing")
        size = self.tell() if size is None else size
        self._call(self._engine.hy_truncate, size)
        return size

    def flush(self) -> None:
        """Do nothing: data is not buffered here. `fsync` makes it durable."""
        super().flush()

    def fsync(self, data_only: bool = False) -> None:
        """Wait until all written data is on the device; raise errors of its writeback."""
        self._call(self._engine.hy_sync, int(data_only))

    def close(self) -> None:
        """Close, after requests of other threads have ended. It is closed even if this raises."""
        handle = self._handle
        if handle is None:
            super().close()
            return
        if threading.get_ident() in self._busy:
            raise RuntimeError(f"close() of {self!r} from within a request of the same thread")
        self._handle = None
        _open_files.discard(self)
        while self._busy:
            time.sleep(_WAIT)
        failed = self._engine.hy_close(handle) < 0
        why = ctypes.get_errno()
        super().close()
        if failed:
            raise OSError(why, os.strerror(why), self.name)

    def __del__(self) -> None:
        """Close, with a ResourceWarning as other files."""
        if self._handle is not None:
            warnings.warn(f"unclosed file {self!r}", ResourceWarning, stacklevel=2, source=self)
            self.close()

    # -- calls of the engine

    def _check(self) -> None:
        if self._handle is None:
            raise ValueError("I/O operation on closed file")

    def _not(self, what: str) -> NoReturn:
        self._check()
        raise io.UnsupportedOperation(f"File not open for {what}")

    def _call(self, function: Callable[..., int], *arguments: object) -> int:
        """Call the engine. Raises ``OSError``."""
        me = threading.get_ident()
        self._busy.append(me)  # before reading the handle: `close` does it in reverse
        try:
            handle = self._handle
            if handle is None:
                raise ValueError("I/O operation on closed file")
            # retry after a signal, as PEP 475; its handler has run
            while (result := function(handle, *arguments)) < 0 and ctypes.get_errno() == errno.EINTR:
                pass
        finally:
            self._busy.remove(me)
        if result < 0:
            self._fail()
        return result

    def _all(self, function: Callable[..., int], address: int, size: int, offset: int) -> int:
        """Transfer `size` bytes in as many requests as needed; fewer only at the end of the file.

        An error after some requests raises, too, and restores the position.
        """
        done = 0
        while True:
            at = offset if offset == layout.POSITION else offset + done
            try:
                got = self._call(function, address + done, size - done, at)
            except OSError as error:
                if done:
                    error.characters_written = done  # type: ignore[attr-defined]  # as BlockingIOError has it
                    if offset == layout.POSITION and self._regular and not self._append:
                        self.seek(-done, os.SEEK_CUR)
                raise
            done += got
            if done >= size or not got or not self._regular:
                return done

    def _fail(self) -> NoReturn:
        why = ctypes.get_errno()
        raise OSError(why, os.strerror(why), self.name)


def _checked(offset: int) -> int:
    if offset < 0:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return offset


def _after_fork() -> None:
    # other threads and their requests do not exist in the child
    for file in list(_open_files):
        file._busy.clear()


os.register_at_fork(after_in_child=_after_fork)
