"""A thin ctypes binding of libbpf 1.x, its only user.

Handles have an idempotent ``close``. Attachments are file descriptors: a killed process leaves nothing in the kernel.
"""

from __future__ import annotations

import ctypes as ct
import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import TracebackType
from typing import Any

from whystall.bpf.errors import BpfError
from whystall.bpf.privileges import held, short_of_memlock

_LOG_TAIL = 6000  # characters of log kept in an error
_LOG_BUFFER = 16 << 20  # most that libbpf requests of the verifier, printed in one piece
_PERMISSION = (errno.EPERM, errno.EACCES)
_PRIVILEGE_REMEDY = "run as root, or with CAP_BPF and CAP_PERFMON"

CARRIED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "objects", "libbpf.so.1")
"""The libbpf that released wheels carry (`deploy/release/libraries.py`); it need not exist."""
_KERNEL_TYPES = b"/sys/kernel/btf/vmlinux"

_KINDS = {"typedef": 8, "enum": 6, "function": 12, "section": 15}

_PrintFn = ct.CFUNCTYPE(ct.c_int, ct.c_int, ct.c_void_p, ct.c_void_p)
_SampleFn = ct.CFUNCTYPE(ct.c_int, ct.c_void_p, ct.c_void_p, ct.c_size_t)
_log = threading.local()


class _OpenOptions(ct.Structure):
    """``struct bpf_object_open_opts`` of libbpf 1.0, as far as it is used."""

    _fields_ = [
        ("size", ct.c_size_t),
        ("object_name", ct.c_char_p),
        ("relaxed_maps", ct.c_bool),
        ("pin_root_path", ct.c_char_p),
        ("unused", ct.c_uint32),
        ("kconfig", ct.c_char_p),
        ("btf_custom_path", ct.c_char_p),
    ]


class _UprobeOptions(ct.Structure):
    """``struct bpf_uprobe_opts`` of libbpf 1.0."""

    _fields_ = [
        ("size", ct.c_size_t),
        ("ref_ctr_offset", ct.c_size_t),
        ("bpf_cookie", ct.c_uint64),
        ("retprobe", ct.c_bool),
        ("func_name", ct.c_char_p),
    ]


def _signatures(lib: Any) -> None:
    p, i, s, z, u = ct.c_void_p, ct.c_int, ct.c_char_p, ct.c_size_t, ct.c_uint32
    table: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "libbpf_set_print": (p, (_PrintFn,)),
        "libbpf_major_version": (u, ()),
        "libbpf_minor_version": (u, ()),
        "bpf_object__open_mem": (p, (p, z, p)),
        "bpf_object__load": (i, (p,)),
        "bpf_object__close": (None, (p,)),
        "bpf_object__find_map_by_name": (p, (p, s)),
        "bpf_object__find_program_by_name": (p, (p, s)),
        "bpf_object__next_program": (p, (p, p)),
        "bpf_program__name": (s, (p,)),
        "bpf_program__set_autoload": (i, (p, ct.c_bool)),
        "bpf_program__set_expected_attach_type": (i, (p, i)),
        "bpf_program__attach": (p, (p,)),
        "bpf_program__attach_iter": (p, (p, p)),
        "bpf_program__attach_perf_event": (p, (p, i)),
        "bpf_program__attach_uprobe_opts": (p, (p, i, s, z, p)),
        "bpf_program__fd": (i, (p,)),
        "bpf_link__fd": (i, (p,)),
        "bpf_link__destroy": (i, (p,)),
        "bpf_iter_create": (i, (i,)),
        "bpf_map__fd": (i, (p,)),
        "bpf_map__key_size": (u, (p,)),
        "bpf_map__value_size": (u, (p,)),
        "bpf_map__max_entries": (u, (p,)),
        "bpf_map__type": (i, (p,)),
        "bpf_map__set_max_entries": (i, (p, u)),
        "bpf_map__set_autocreate": (i, (p, ct.c_bool)),
        "bpf_map__set_initial_value": (i, (p, p, z)),
        "bpf_map_lookup_elem": (i, (i, p, p)),
        "bpf_map_update_elem": (i, (i, p, p, ct.c_uint64)),
        "bpf_map_delete_elem": (i, (i, p)),
        "bpf_map_get_next_key": (i, (i, p, p)),
        "bpf_map_lookup_batch": (i, (i, p, p, p, p, ct.POINTER(u), p)),
        "bpf_map_lookup_and_delete_batch": (i, (i, p, p, p, p, ct.POINTER(u), p)),
        "bpf_prog_get_next_id": (i, (u, ct.POINTER(u))),
        "bpf_prog_get_fd_by_id": (i, (u,)),
        "bpf_obj_get_info_by_fd": (i, (i, p, ct.POINTER(u))),
        "bpf_enable_stats": (i, (u,)),
        "ring_buffer__new": (p, (i, _SampleFn, p, p)),
        "ring_buffer__epoll_fd": (i, (p,)),
        "ring_buffer__consume": (i, (p,)),
        "ring_buffer__free": (None, (p,)),
        "libbpf_num_possible_cpus": (i, ()),
        "btf__load_vmlinux_btf": (p, ()),
        "btf__free": (None, (p,)),
        "btf__find_by_name_kind": (i, (p, s, u)),
        "btf__type_by_id": (p, (p, u)),
        "btf__name_by_offset": (s, (p, u)),
    }
    for name, (result, arguments) in table.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


def _print(level: int, fmt: int, arguments: int) -> int:
    """Keep warnings of this thread; a va_list passes as one pointer on x86_64 and aarch64 alike."""
    if level < 2:
        buffer = ct.create_string_buffer(_LOG_BUFFER)
        _libc().vsnprintf(buffer, ct.c_size_t(len(buffer)), ct.c_void_p(fmt), ct.c_void_p(arguments))
        kept: list[str] = _log.__dict__.setdefault("lines", [])
        kept.append(buffer.value[-_LOG_TAIL:].decode("utf-8", "replace"))
        del kept[:-50]
    return 0


_print_callback = _PrintFn(_print)  # kept alive: libbpf calls it


@lru_cache(maxsize=1)
def _libc() -> ct.CDLL:
    return ct.CDLL(None)


@lru_cache(maxsize=1)
def library() -> Any:
    """Load the wheel's libbpf, or else the system's, once. Raises ``BpfError`` ``no_libbpf``."""
    try:
        lib = ct.CDLL(CARRIED if os.path.exists(CARRIED) else "libbpf.so.1", use_errno=True)
        _signatures(lib)
    except (OSError, AttributeError) as error:
        raise BpfError(
            "no_libbpf",
            f"libbpf 1.x cannot be used: {error}",
            "install it: apt install libbpf1 (Debian, Ubuntu) or dnf install libbpf (openEuler)",
        ) from error
    lib.libbpf_set_print(_print_callback)
    return lib


def version() -> str:
    """Return the version of the loaded libbpf, ``major.minor``."""
    lib = library()
    return f"{lib.libbpf_major_version()}.{lib.libbpf_minor_version()}"


def possible_cpus() -> int:
    """Return the number of CPUs that a per-CPU map has values for."""
    return int(library().libbpf_num_possible_cpus())


def _take_log() -> str:
    lines: list[str] = _log.__dict__.setdefault("lines", [])
    text = "".join(lines)
    lines.clear()
    return text[-_LOG_TAIL:]


_LIMITS = {
    errno.EMFILE: "some 150 descriptors are needed, and two for each CPU: raise the limit (ulimit -n)",
    errno.ENFILE: "the system's descriptors are used up: raise the limit (sysctl fs.file-max)",
    errno.ENOMEM: "free some memory, or give this control group more",
}
"""Remedies of failures not caused by the program, by error number."""


def _failed(code: str, what: str, number: int, remedy: str) -> BpfError:
    log = _take_log()
    if number in _PERMISSION and "BEGIN PROG LOAD LOG" not in log:
        code, remedy = "no_privilege", _privilege_remedy()
    elif number in _LIMITS:
        remedy = _LIMITS[number]
    return BpfError(code, f"{what}: {os.strerror(number) if number else 'unknown error'}", remedy, log)


def _privilege_remedy() -> str:
    limit, capabilities = short_of_memlock(), held()
    if not (capabilities >= {"CAP_BPF", "CAP_PERFMON"} or "CAP_SYS_ADMIN" in capabilities):
        return _PRIVILEGE_REMEDY
    if limit is None:
        return "it is no capability that is missing here: run `whystall doctor` (a seccomp filter, a user namespace?)"
    return (
        f"this kernel takes BPF memory for locked memory, of which {limit >> 10} KiB are allowed: raise that "
        "(`ulimit -l unlimited`, LimitMEMLOCK=infinity in a unit), or add CAP_SYS_RESOURCE"
    )


class KernelTypes:
    """The running kernel's BTF; takes about 6 ms to load and 6 MB while open: query once and close."""

    def __init__(self) -> None:
        self._lib = library()
        self._btf = self._lib.btf__load_vmlinux_btf()
        if not self._btf:
            number = ct.get_errno()
            raise BpfError(
                "no_btf",
                f"the kernel's type information cannot be read: {os.strerror(number)}",
                _LIMITS.get(number, "use a kernel built with CONFIG_DEBUG_INFO_BTF (/sys/kernel/btf/vmlinux)"),
            )

    def __enter__(self) -> KernelTypes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lib.btf__free(self._btf)

    def _find(self, name: str, kind: str) -> int:
        return int(self._lib.btf__find_by_name_kind(self._btf, name.encode(), _KINDS[kind]))

    def _type(self, number: int) -> tuple[int, int, int]:
        """Return (info word, size or type id, address) of one type."""
        address = self._lib.btf__type_by_id(self._btf, number)
        words = (ct.c_uint32 * 3).from_address(address)
        return words[1], words[2], address

    def tracepoint_arguments(self, name: str) -> int:
        """Return the number of arguments of a BTF tracepoint; -1 without that tracepoint."""
        number = self._find(f"btf_trace_{name}", "typedef")
        if number < 0:
            return -1
        pointer = self._type(number)[1]
        prototype = self._type(pointer)[1]
        return (self._type(prototype)[0] & 0xFFFF) - 1  # less the leading `void *`

    def enum_names(self, name: str) -> frozenset[str]:
        """Return the names of the values of an enum."""
        number = self._find(name, "enum")
        if number < 0:
            return frozenset()
        info, _, address = self._type(number)
        count = info & 0xFFFF
        values = (ct.c_uint32 * (2 * count)).from_address(address + 12)
        names = (self._lib.btf__name_by_offset(self._btf, values[2 * i]) for i in range(count))
        return frozenset(text.decode() for text in names)

    def per_cpu_offsets(self) -> dict[str, int]:
        """Return the byte offsets of the kernel's per-CPU variables in a CPU's area; empty if BTF has none."""
        number = self._find(".data..percpu", "section")
        if number < 0:
            return {}
        info, _, address = self._type(number)
        places = (ct.c_uint32 * (3 * (info & 0xFFFF))).from_address(address + 12)  # of type, offset, size
        offsets = {}
        for at in range(0, len(places), 3):
            name = self._lib.btf__name_by_offset(
                self._btf, ct.c_uint32.from_address(self._lib.btf__type_by_id(self._btf, places[at])).value
            )
            offsets[name.decode()] = places[at + 1]
        return offsets

    def has_function(self, name: str) -> bool:
        """Return whether BTF has this kernel function."""
        return self._find(name, "function") >= 0


class Map:
    """One map of an object; keys and values are bytes."""

    def __init__(self, handle: int, name: str) -> None:
        self._lib, self._handle, self.name = library(), handle, name
        self.key_size: int = self._lib.bpf_map__key_size(handle)
        self.value_size: int = self._lib.bpf_map__value_size(handle)

    @property
    def max_entries(self) -> int:
        """Return the maximum number of entries."""
        return int(self._lib.bpf_map__max_entries(self._handle))

    @property
    def fd(self) -> int:
        """Return the descriptor of a loaded map; negative before."""
        return int(self._lib.bpf_map__fd(self._handle))

    def set_max_entries(self, entries: int) -> None:
        """Set, before load, the maximum number of entries."""
        self._check(self._lib.bpf_map__set_max_entries(self._handle, entries), "resize")

    def set_autocreate(self, wanted: bool) -> None:
        """Set, before load, whether the map is created."""
        self._check(self._lib.bpf_map__set_autocreate(self._handle, wanted), "choose")

    def set_initial(self, data: bytes) -> None:
        """Set, before load, the whole content of a data section (constants included)."""
        self._check(self._lib.bpf_map__set_initial_value(self._handle, data, len(data)), "initialise")

    def memory(self) -> mmap.mmap:
        """Return a writable data section of a loaded object, shared with the running programs."""
        try:
            return mmap.mmap(self.fd, mmap.PAGESIZE)
        except OSError as error:
            raise _failed("load_failed", f"cannot map {self.name}", error.errno or 0, "free some memory") from error

    def lookup(self, key: bytes, per_cpu: bool = False) -> bytes | None:
        """Return the value or None; per-CPU maps return all CPUs' values in a row, each padded to 8 bytes."""
        size = (self.value_size + 7) // 8 * 8 * possible_cpus() if per_cpu else self.value_size
        value = ct.create_string_buffer(size)
        if self._lib.bpf_map_lookup_elem(self.fd, key, value):
            return None
        return value.raw

    def update(self, key: bytes, value: bytes) -> None:
        """Insert or replace."""
        self._check(self._lib.bpf_map_update_elem(self.fd, key, value, 0), "update")

    def insert(self, key: bytes, value: bytes) -> bool:
        """Insert or replace; return False if there is no room."""
        found = self._lib.bpf_map_update_elem(self.fd, key, value, 0)
        if found and errno.E2BIG in (ct.get_errno(), -found):
            return False
        self._check(found, "update")
        return True

    def delete(self, key: bytes) -> bool:
        """Remove; return False if it was not there."""
        return bool(self._lib.bpf_map_delete_elem(self.fd, key) == 0)

    def items(self, batch: int = 4096) -> list[tuple[bytes, bytes]]:
        """Return all entries, in no order; read in batches (since 5.6), else key by key."""
        keys, values = self._read_all(batch, self._lib.bpf_map_lookup_batch)
        k, v = self.key_size, self.value_size
        return [(keys[i * k : (i + 1) * k], values[i * v : (i + 1) * v]) for i in range(len(keys) // k)]

    def drain(self, batch: int = 4096) -> tuple[bytes, bytes]:
        """Remove all entries; return their keys in a row, and their values. A change while this runs may be lost."""
        return self._read_all(batch, self._lib.bpf_map_lookup_and_delete_batch)

    def _read_all(self, batch: int, read: Any) -> tuple[bytes, bytes]:
        """Return all keys in a row, and all values, read by one of the batch functions."""
        removes = read is self._lib.bpf_map_lookup_and_delete_batch
        all_keys, all_values = bytearray(), bytearray()
        keys = ct.create_string_buffer(self.key_size * batch)
        values = ct.create_string_buffer(self.value_size * batch)
        # size for either: a hash map's cursor is a bucket number, an array's a key
        cursor = ct.create_string_buffer(max(8, self.key_size))
        start: Any = None
        while True:
            count = ct.c_uint32(batch)
            result = read(self.fd, start, cursor, keys, values, ct.byref(count), None)
            number = ct.get_errno() if result else 0
            if number == errno.ENOSPC and batch < self.max_entries:  # one bucket holds more than a batch
                more_keys, more_values = self._read_all(batch * 4, read)
                return (
                    (bytes(all_keys) + more_keys, bytes(all_values) + more_values)
                    if removes
                    else (more_keys, more_values)
                )
            if number not in (0, errno.ENOENT):
                for key, value in list(self._items_one_by_one()):
                    all_keys += key
                    all_values += value
                    if removes:
                        self.delete(key)
                return bytes(all_keys), bytes(all_values)
            all_keys += ct.string_at(keys, count.value * self.key_size)
            all_values += ct.string_at(values, count.value * self.value_size)
            if number:
                return bytes(all_keys), bytes(all_values)
            start = cursor

    def _items_one_by_one(self) -> Iterator[tuple[bytes, bytes]]:
        key, following = None, ct.create_string_buffer(self.key_size)
        while self._lib.bpf_map_get_next_key(self.fd, key, following) == 0:
            value = self.lookup(following.raw)
            if value is not None:
                yield following.raw, value
            key = ct.create_string_buffer(following.raw, self.key_size)

    def _check(self, result: int, what: str) -> None:
        if result:
            raise _failed("load_failed", f"cannot {what} map {self.name}", ct.get_errno() or -result, "see the log")


class Link:
    """A program attached to its hook until closed."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    @property
    def fd(self) -> int:
        """Return the descriptor of the attachment."""
        return int(library().bpf_link__fd(self._handle))

    def close(self) -> None:
        """Detach."""
        handle, self._handle = self._handle, None
        if handle:
            library().bpf_link__destroy(handle)


class Program:
    """One program of an object."""

    def __init__(self, handle: int, name: str) -> None:
        self._lib, self._handle, self.name = library(), handle, name

    @property
    def fd(self) -> int:
        """Return the descriptor of a loaded program; negative before."""
        return int(self._lib.bpf_program__fd(self._handle))

    def set_autoload(self, wanted: bool) -> None:
        """Set, before load, whether the program is loaded."""
        self._lib.bpf_program__set_autoload(self._handle, wanted)

    def set_attach_type(self, number: int) -> None:
        """Set, before load, what it is loaded for (enum bpf_attach_type), where its section does not say so."""
        self._lib.bpf_program__set_expected_attach_type(self._handle, number)

    def attach(self) -> Link:
        """Attach to the hook named by its section. Raises ``BpfError`` ``attach_failed``."""
        return Link(self._attached(self._lib.bpf_program__attach(self._handle)))

    def attach_to_timer(self, descriptor: int) -> Link:
        """Attach to the perf event `descriptor` and start it. Takes ownership: on failure it is closed."""
        handle = self._lib.bpf_program__attach_perf_event(self._handle, descriptor)
        if not handle:
            number = ct.get_errno()
            os.close(descriptor)
            ct.set_errno(number)
        return Link(self._attached(handle))

    def attach_to_function(self, path: str, offset: int, cookie: int, *, returns: bool = False, pid: int = -1) -> Link:
        """Attach to the code at `offset` of the file `path`, in all processes or in `pid`. `returns`: run when the
        function there returns. Raises ``BpfError`` ``attach_failed``."""
        options = _UprobeOptions(size=ct.sizeof(_UprobeOptions), bpf_cookie=cookie, retprobe=returns)
        made = self._lib.bpf_program__attach_uprobe_opts(self._handle, pid, path.encode(), offset, ct.byref(options))
        return Link(self._attached(made))

    def run_iterator(self) -> bytes:
        """Run an iterator program; return its output."""
        link = Link(self._attached(self._lib.bpf_program__attach_iter(self._handle, None)))
        try:
            fd = self._lib.bpf_iter_create(link.fd)
            if fd < 0:
                raise _failed("attach_failed", f"cannot run {self.name}", ct.get_errno(), "see the log")
            with os.fdopen(fd, "rb", closefd=True) as stream:
                return stream.read()
        finally:
            link.close()

    def recursion_misses(self) -> int:
        """Return how often the program did not run because it was already running (kernels since 5.12)."""
        return self._info(208)

    def run_time_ns(self) -> int:
        """Return its time on all CPUs while `run_statistics` were on, ns."""
        return self._info(192)

    def run_count(self) -> int:
        """Return how often it ran on all CPUs while `run_statistics` were on."""
        return self._info(200)

    def _info(self, offset: int) -> int:
        """Return a member of ``struct bpf_prog_info``; 0: the kernel does not have it."""
        info = ct.create_string_buffer(256)
        size = ct.c_uint32(len(info))
        if self._lib.bpf_obj_get_info_by_fd(self.fd, info, ct.byref(size)) or size.value < offset + 8:
            return 0
        return ct.c_uint64.from_buffer(info, offset).value

    def _attached(self, handle: int | None) -> int:
        if not handle:
            raise _failed(
                "attach_failed", f"cannot attach {self.name}", ct.get_errno(), "check the kernel with `whystall doctor`"
            )
        return handle


class Ring:
    """A ring buffer; ``on_record`` gets each record's bytes and must not raise."""

    def __init__(self, source: Map, on_record: Callable[[bytes], None]) -> None:
        def sample(_context: int, data: int, size: int) -> int:
            on_record(ct.string_at(data, size))
            return 0

        self._callback = _SampleFn(sample)  # kept alive: the C side calls it
        self._handle: int | None = library().ring_buffer__new(source.fd, self._callback, None, None)
        if not self._handle:
            raise _failed("load_failed", "cannot map the ring buffer", ct.get_errno(), "free some memory")

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the programs wake the reader."""
        return int(library().ring_buffer__epoll_fd(self._handle))

    def consume(self) -> int:
        """Process all available records; return their number."""
        if not self._handle:
            return 0
        taken: int = library().ring_buffer__consume(self._handle)
        if taken < 0:
            raise _failed("read_failed", "cannot read the ring buffer", -taken, "report this as a bug")
        return taken

    def close(self) -> None:
        """Unmap."""
        handle, self._handle = self._handle, None
        if handle:
            library().ring_buffer__free(handle)


class Object:
    """A BPF object: opened from bytes, configured, loaded once."""

    def __init__(self, data: bytes, name: str) -> None:
        """Parse the object. Raises ``BpfError`` ``load_failed``."""
        self._lib = library()
        _take_log()
        self.name = name
        self._handle: int | None = self._lib.bpf_object__open_mem(data, len(data), _options())
        if not self._handle:
            raise _failed("load_failed", f"{name} is no BPF object", ct.get_errno(), "build it again: make build")

    def map(self, name: str) -> Map:
        """Return a map by name (a data section by its section's name)."""
        handle = self._lib.bpf_object__find_map_by_name(self._handle, name.encode())
        if not handle:
            raise BpfError("load_failed", f"{self.name} has no map {name}", "build it again: make build")
        return Map(handle, name)

    def program(self, name: str) -> Program:
        """Return a program by its function's name."""
        handle = self._lib.bpf_object__find_program_by_name(self._handle, name.encode())
        if not handle:
            raise BpfError("load_failed", f"{self.name} has no program {name}", "build it again: make build")
        return Program(handle, name)

    def program_names(self) -> list[str]:
        """Return the names of all programs in the object."""
        names: list[str] = []
        handle = self._lib.bpf_object__next_program(self._handle, None)
        while handle:
            names.append(self._lib.bpf_program__name(handle).decode())
            handle = self._lib.bpf_object__next_program(self._handle, handle)
        return names

    def load(self) -> None:
        """Create the maps and load the programs. Raises ``BpfError`` ``load_failed`` or ``no_privilege``."""
        _take_log()
        result = self._lib.bpf_object__load(self._handle)
        if result:
            raise _failed(
                "load_failed",
                f"the kernel refused {self.name}",
                -result,
                "report the log with the kernel version",
            )

    def close(self) -> None:
        """Free the object."""
        handle, self._handle = self._handle, None
        if handle:
            self._lib.bpf_object__close(handle)


def _options() -> Any:
    """Return options to open an object without CAP_SYS_ADMIN.

    libbpf searches a type that the kernel lacks in its modules, which requires that capability (BPF_BTF_GET_NEXT_ID);
    without it libbpf 1.1 fails. With the kernel's types given as a file it does not search modules
    (bpf_core_find_cands), but reads the types twice, about 6 ms.
    """
    if "CAP_SYS_ADMIN" in held():
        return None
    return ct.byref(_OpenOptions(size=ct.sizeof(_OpenOptions), btf_custom_path=_KERNEL_TYPES))


def run_statistics() -> int | None:
    """Make the kernel measure the run time of all BPF programs (some 20 ns per run) until the returned descriptor is
    closed; None where it cannot (before 5.8, or without CAP_SYS_ADMIN)."""
    descriptor = int(library().bpf_enable_stats(0))
    return descriptor if descriptor >= 0 else None


def program_ids() -> frozenset[int]:
    """Return the ids of all BPF programs in the kernel (requires privilege)."""
    lib, found, number = library(), [], ct.c_uint32(0)
    while lib.bpf_prog_get_next_id(number.value, ct.byref(number)) == 0:
        found.append(number.value)
    return frozenset(found)
