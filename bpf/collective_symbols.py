"""Find the functions of a process by which its rank communicates with others, in whatever libraries it has loaded.

C interfaces (NCCL, RCCL, HCCL, MPI) have a function per operation. Of gloo, which torch links statically, the work
objects of torch are followed: ``AsyncWork`` is constructed and enqueued by the thread that calls, executed by a thread
of the group (``pt_gloo_runloop``), and finished there (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp). So the end of
an operation is an entry too, and no return needs to be probed. gloo's own functions tell the size of a payload.

Sources: nccl.h, RCCL's api_trace, hccl.h of CANN, the MPI standard; gloo/allreduce.h, broadcast.h, allgather.h.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from whystall.bpf.elf_symbols import functions_named
from whystall.bpf.functions import Probe, Value, place
from whystall.bpf.symbols import executed_files

_KEPT_FILES = 64
_MOST_PROBES = 512
_MOST_ELEMENTS = 1 << 42  # more is an address
_WIDTHS = frozenset({1, 2, 4, 8, 16})
# Parts of the names of files that may have such functions; the program itself may, too.
_FILES = ("torch", "nccl", "rccl", "hccl", "mpi", "gloo")

CALL, CREATE, ENQUEUE, EXECUTE, FINISH, SIZE = "call", "create", "enqueue", "execute", "finish", "size"
"""Events that a probe records. `CALL`: an operation begins (and ends when it returns). Of torch's gloo: a work
object is created, enqueued, executed, finished; `SIZE`: the payload of the work that this thread executes."""
OP_TYPES = (
    *("broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "_allgather_base"),
    *("allgather_coalesced", "gather", "scatter", "reduce_scatter", "alltoall_base", "alltoall", "send", "recv"),
    *("recv_anysource", "barrier", "_reduce_scatter_base", "coalesced", "_allreduce_sparse"),
)
"""torch's operations by their number (torch/csrc/distributed/c10d/Types.hpp, OpType)."""


class Function(NamedTuple):
    """A function of a library, and what a probe on it records. `meaning`: of the values, in their order: ``work``,
    ``group``, ``context``, ``seq``, ``op``, ``count``, ``type``, ``comm``, ``peer``, ``size``, or of `elements_of`."""

    library: str
    symbol: str
    event: str
    op: str = ""
    meaning: tuple[str, ...] = ()
    values: tuple[Value | None, ...] = ()
    returns: bool = False


# symbol: operation, then the numbers of the arguments count, type, communicator and peer; "-": none, or not recorded
_INTERFACES = {
    "nccl": """
        ncclAllReduce all_reduce 2 3 5
        ncclBroadcast broadcast 2 3 5
        ncclBcast broadcast 1 2 4
        ncclReduce reduce 2 3 6
        ncclAllGather all_gather 2 3 4
        ncclReduceScatter reduce_scatter 2 3 5
        ncclAllToAll all_to_all 2 3 4
        ncclAlltoAll all_to_all 2 3 4
        ncclGather gather 2 3 5
        ncclScatter scatter 2 3 5
        ncclSend send 1 2 4 3
        ncclRecv recv 1 2 4 3""",
    "hccl": """
        HcclAllReduce all_reduce 2 3 5
        HcclBroadcast broadcast 1 2 4
        HcclReduce reduce 2 3 6
        HcclAllGather all_gather 2 3 4
        HcclReduceScatter reduce_scatter 2 3 5
        HcclScatter scatter 2 3 5
        HcclAlltoAll all_to_all 1 2 6
        HcclBarrier barrier - - 0
        HcclSend send 1 2 4 3
        HcclRecv recv 1 2 4 3""",
    "mpi": """
        MPI_Allreduce all_reduce 2 3 5
        MPI_Bcast broadcast 1 2 4
        MPI_Reduce reduce 2 3 6
        MPI_Allgather all_gather 1 2 6
        MPI_Alltoall all_to_all 1 2 6
        MPI_Reduce_scatter reduce_scatter - 3 5
        MPI_Reduce_scatter_block reduce_scatter 2 3 5
        MPI_Barrier barrier - - 0""",
}
TYPE_BYTES = {
    # int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, two of 8 bits (ncclDataType_t)
    "nccl": (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1),
    # int8, int16, int32, fp16, fp32, int64, uint64, uint8, uint16, uint32, fp64, bfp16 (HcclDataType)
    "hccl": (1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2),
}
"""Bytes of an element by the number of its type; MPI's types are objects of the library."""
ENQUEUES = frozenset({"nccl", "rccl", "hccl"})
"""Libraries whose functions return when the operation is enqueued on the device, not when it is done."""


def _c_functions() -> Iterable[Function]:
    for library, lines in _INTERFACES.items():
        for line in lines.strip().splitlines():
            symbol, op, *arguments = line.split()
            found = [
                (meaning, Value(int(at)))
                for meaning, at in zip(("count", "type", "comm", "peer"), arguments, strict=False)
                if at != "-"
            ]
            meaning, values = tuple(name for name, _ in found), tuple(value for _, value in found)
            yield Function(library, symbol, CALL, op, meaning, values, returns=True)


_C = {function.symbol: function for function in _c_functions()}
_WORK = b"_ZN4c10d16ProcessGroupGloo9AsyncWork"
_CONTEXT = "St10shared_ptrIN4gloo7ContextEE"
# options.elements and options.elementSize are the first two of these words, since 2025 the last two
_ALLREDUCE = ("context", "first", "second", "third"), (Value(0, 0), Value(0, 0x48), Value(0, 0x50), Value(0, 0x58))
_BUFFER = ("context", "size"), (Value(0, 0), Value(0, 0x18, 0x10))  # options.out->size
# mangled names, without the types of arguments
_GLOO: dict[str, tuple[str, tuple[str, ...], tuple[Value | None, ...]]] = {
    "_ZN4c10d16ProcessGroupGloo7enqueueE": (ENQUEUE, ("work", "group"), (Value(1, 0), Value(0))),
    f"{_WORK.decode()}7executeE": (EXECUTE, ("work",), (Value(0, 0),)),
    f"{_WORK.decode()}14finishWorkGlooE": (FINISH, ("work",), (Value(0),)),
    f"{_WORK.decode()}19finishWorkGlooErrorE": (FINISH, ("work",), (Value(0),)),
    "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE": (SIZE, *_ALLREDUCE),
    "_ZN4gloo9allgatherERNS_16AllgatherOptionsE": (SIZE, *_BUFFER),
    "_ZN4gloo9broadcastERNS_16BroadcastOptionsE": (SIZE, *_BUFFER),
}
_NAMES = re.compile(
    b"|".join(
        (
            *(name.encode() for name in sorted(_C, key=len, reverse=True)),
            rb"%bC[12]E\w+" % _WORK,
            *(name.encode() + rb"\w*" for name in _GLOO),
        )
    )
)


def elements_of(known: Mapping[str, int]) -> tuple[int, int] | None:
    """Return the number of elements and the bytes of each from words of gloo's options of an allreduce; None if they
    are neither layout's."""
    for count, width in (("first", "second"), ("second", "third")):
        if 0 < known.get(count, 0) < _MOST_ELEMENTS and known.get(width) in _WIDTHS:
            return known[count], known[width]
    return None


@dataclass(frozen=True)
class Found:
    """A function in a file, and the probe on it."""

    function: Function
    probe: Probe


@dataclass
class Search:
    """What processes communicate by. `found`: functions, whose place is the number of their probe; `pids`: processes
    with some; `stripped`: files of torch or of a library that have none."""

    found: list[Found]
    pids: set[int]
    stripped: list[str]


def search(pids: Iterable[int]) -> Search:
    """Find the functions in all files that the processes execute, each file once. At most 512 functions."""
    result = Search([], set(), [])
    seen: dict[tuple[str, str], bool] = {}
    for pid in pids:
        for (path, identity), paths in executed_files(pid).items():
            name = os.path.basename(path)
            if not any(part in name for part in _FILES) and not _is_program(pid, path):
                continue
            if identity not in seen:
                usable = next((one for one in paths if os.access(one, os.R_OK)), paths[0])
                functions = _functions(usable, name)
                seen[identity] = bool(functions)
                for function, start in functions[: _MOST_PROBES - len(result.found)]:
                    offset, emulated = place(usable, start)
                    number = len(result.found)
                    probe = Probe(usable, offset, number, function.values, function.returns, emulated)
                    result.found.append(Found(function, probe))
                if not functions and name.startswith(("libtorch_cpu", "libnccl", "librccl", "libhccl", "libmpi.")):
                    result.stripped.append(name)
            if seen[identity]:
                result.pids.add(pid)
    return result


def _is_program(pid: int, path: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe") == path
    except OSError:
        return False


_files: OrderedDict[tuple[int, int, int, int], list[tuple[Function, int]]] = OrderedDict()


def _functions(path: str, name: str) -> list[tuple[Function, int]]:
    """Return the functions in a file with their offsets; of several at one place (a constructor's two names) one."""
    try:
        status = os.stat(path)
    except OSError:
        return []
    version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if version not in _files:
        offsets = functions_named(path, _NAMES)
        placed = {offset: _function(symbol, name) for symbol, offset in sorted(offsets.items())}
        _files[version] = [(function, offset) for offset, function in placed.items()]
        while len(_files) > _KEPT_FILES:
            _files.popitem(last=False)
    _files.move_to_end(version)
    return _files[version]


def _function(symbol: str, file: str) -> Function:
    if symbol in _C:
        found = _C[symbol]
        return found._replace(library="rccl") if found.library == "nccl" and "rccl" in file else found
    for name, (event, meaning, values) in _GLOO.items():
        if symbol.startswith(name):
            return Function("gloo", symbol, event, "", meaning, values)
    # AsyncWork(shared_ptr<Context>, vector<vector<Tensor>>, OpType, uint64_t seq, ...); older ones have no context, or
    # no number
    arguments = symbol.partition(f"{_WORK.decode()}C")[2][2:]
    known = {"work": Value(0)}
    first = 1
    if arguments.startswith(_CONTEXT):
        known["context"], first = Value(1, 0), 2
    if "6OpTypeE" in arguments:
        known["op"] = Value(first + 1)
    if "6OpTypeEm" in arguments:
        known["seq"] = Value(first + 2)
    return Function("gloo", symbol, CREATE, "", tuple(known), tuple(known.values()))
