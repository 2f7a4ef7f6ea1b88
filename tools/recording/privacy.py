"""Which texts of recordings and findings are private: the one place where every column and attribute is classified.

A new text column or attribute must be added here; tests check that none is missing. `redact` hashes what is private.
"""

from __future__ import annotations

import re
from enum import Enum
from types import MappingProxyType


class Privacy(Enum):
    """What a text is, and so how it is hidden."""

    PUBLIC = "public"  # a code, a number as text, a name of the kernel, of a system call or of an operator: stays
    NAME = "name"  # hashed as a whole
    PATH = "path"  # each component by itself; of well-known device files nothing
    OBJECT = "object"  # what a descriptor is: a path, else a kind with its number
    ADDRESS = "address"  # of a socket: the host is replaced, the port stays
    INTERRUPT = "interrupt"  # softirqs are public, drivers name their interrupts after devices
    FILESYSTEM = "filesystem"  # its type is public, a subtype (fuse.NAME) is not
    GROUP = "group"  # of ranks: words for its purpose stay
    CODE = "code"  # frames of stacks: the kernel's, the standard library's and well-known libraries' stay
    TEXT = "text"  # free text, which may contain anything: removed


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BY_RULE: dict[Privacy, str] = {
    Privacy.PUBLIC: (
        "syscall waker_syscall error dev state prev_state context operation phase kind what wchan lock_kind version"
        " setting family protocol source way code why unit cpus cpuset policy backend clock op dtype transport"
        " library fatal link model call hardware.counters.name origin function functions taint release signal"
        " module modules foreign component where bus memory relation severity server quantity metric part"
        " proc.host.name samples.events.name samples_before.events.name ftrace.syscalls.name profile.activities.name"
        " accelerator.events.name"
        " ranks.operators.name ranks_before.operators.name"
        " shape value ranks.latencies.name ranks_before.latencies.name baseline.latencies.name at"
        " vendor health throttle topology.groups.ranks"
    ),
    Privacy.NAME: "title also nics other comm waker_comm ran_comm device uuid host text exception ftrace.markers.name",
    Privacy.OBJECT: "object",
    Privacy.ADDRESS: "local remote",
    Privacy.INTERRUPT: ("interrupts.totals.name interrupts.latency.name interrupts.stolen.name ftrace.interrupts.name"),
    Privacy.FILESYSTEM: "fstype",
    Privacy.PATH: "path cgroup limit_cgroup directory proc.cpu_weights.group",
    Privacy.GROUP: (
        "group description ranks.groups.name ranks_before.groups.name topology.groups.name objects.process_groups.name"
    ),
    Privacy.CODE: (
        "frames samples.frames.name samples.frames.file samples_before.frames.name samples_before.frames.file"
        " accelerator.frames.name accelerator.frames.file"
    ),
    Privacy.TEXT: "detail allocator",
}
COLUMNS = MappingProxyType({name: rule for rule, names in _BY_RULE.items() for name in names.split()})
"""Text columns: by name, or as ``collector.table.column`` where the name alone does not say what it is."""


def of_column(table: str, column: str) -> Privacy | None:
    """Return what `column` of ``collector.table`` is; None if it is not classified."""
    return COLUMNS.get(f"{table}.{column}") or COLUMNS.get(column)


PUBLIC_ATTRIBUTES = _names(
    # codes, calls, errors, yes and no; functions of the kernel; CPUs, ranks and counts
    "advice answer between brief broken cpus direct direction error event evidence expected files found frame_kind"
    " in_flight kernel_path killed limit limit_file lock main_wait mode module moves open operation operations origin"
    " other_setting own peers policy processes proof ranks reaction reason role root_detail root_in_turn root_mode"
    " root_mutual root_outside root_same root_wait setting shape standstill state syscall taint wait what"
    # codes of hardware: names of errors, counters and actions
    " action area condition counters further links meaning model recovery switch_class throttle xid"
    # versions of software
    " component fixed version"
    # stages of inference servers
    " basis health probe relevance server source stage symptom"
)
"""Attributes of findings that are the same in a redacted recording."""
PRIVATE_ATTRIBUTES = _names(
    # names of crashes, which may have those of programs
    "also log near using "
    # threads, code, files, sockets, cgroups and devices, also within longer texts; names of operators and groups
    "accelerator between_object by callee chain code cycle detail device example filesystem function holder"
    " ended_by holder_code holder_doing interrupt limit_of local main mostly mount name neighbour object other_group"
    " own_group job message path peer peer_code process root root_by root_code root_object stack user_path uuid via"
    " waiter waker"
)
"""Attributes of findings that may contain a private name: they are made of private columns."""


# --- names that identify nobody -----------------------------------------------------------------------------------

DEVICE_FILES = re.compile(
    r"/dev/(?:nvidia[\w-]*|kfd|dri/\w+|davinci\w*|hisi_hdc|accel/?\w*|tty\w*|pts/[0-9]+|console|null|zero|full|u?random)"
)
"""Files of devices whose paths are the same on every host, and show what is waited for."""
INODES = re.compile(r"(?:pipe|socket|mnt|net|pid|user|uts|ipc|cgroup|time):\[[0-9]+\]|anon_inode:[\w:\[\]-]+")
"""Objects without a name of their own, as /proc/PID/fd shows them."""
SOFTIRQS = _names("HI TIMER NET_TX NET_RX BLOCK IRQ_POLL TASKLET SCHED HRTIMER RCU")
PURPOSES = re.compile(
    r"(?:all|context|cp|data|default|dp|embedding|ep|expert|expt|first|fsdp|global|gloo|group|hybrid|inter|"
    r"intra|last|local|mesh|model|mp|nccl|parallel|pg|pipeline|position|pp|process|rank|ranks|replicate|"
    r"sequence|shard|sp|tensor|tp|undefined|with|without|world|zero|[\W\d_])*",
    re.IGNORECASE,
)
"""Words for the purpose of a group of ranks: they show which ranks do the same work."""
FRAME_KINDS = _names("kernel operator launch device idle")
"""Kinds of sampled frames that name kernel functions, framework operators or device kernels."""
PACKAGES = _names(
    "torch torch_npu torchvision tensorflow nvidia datasets webdataset deepspeed horovod mpi4py safetensors loguru"
    " wandb mlflow urllib3 requests httpx httpcore aiohttp botocore boto3 redis grpc uvloop triton numpy pandas polars"
    " pyarrow scipy sklearn jax flax transformers accelerate lightning pytorch_lightning joblib dask ray numba"
)
"""Libraries whose code is public: what a thread waits for is known by their functions. See `PUBLIC_NATIVE`."""
PUBLIC_SOURCE = re.compile(
    # of a package, from it or from its directory on: torch/storage.py, /opt/venv/.../site-packages/torch/storage.py
    r"(?:.*/(?=(?:site|dist)-packages/))?(?P<package>(?:(?:site|dist)-packages/)?(?P<name>\w+)/[\w./-]+\.pyx?)"
    # of the standard library: python3.11/queue.py, /usr/lib/python3.11/queue.py, <frozen importlib._bootstrap>
    r"|(?:.*/(?=lib(?:32|64)?/python3))?"
    r"(?P<standard>(?:lib(?:32|64)?/)?python3(?:\.[0-9]+)?t?/(?!.*-packages/)[\w./-]+\.py)"
    r"|(?P<frozen><frozen [\w.]+>)"
)
"""Paths of Python source files that may be public."""
_LIBRARY = (
    r"(?:lib)?python3[\w.-]*|ld-[\w.-]+|linux-vdso[\w.]*"
    r"|lib(?:cuda|cudart|amdhip64|hsa-runtime64|ascendcl|ascend_hal|c|m|pthread|torch\w*|c10\w*|nccl|gomp|iomp5)"
    r"(?:-[0-9a-f.]+)?\.so[0-9.]*"
)
PUBLIC_LIBRARY = re.compile(_LIBRARY)
"""Names of shared libraries, of the interpreter and of those that drive devices and threads."""
PUBLIC_NATIVE = re.compile(
    rf"\[garbage collector\]|\[(?:{_LIBRARY})\]"
    r"|(?:_*(?:GI_+)?(?:pthread|lll)_|gomp_|GOMP_|_*kmp|omp_|tbb::|gloo::|c10d?::|at::|nccl|P?MPI_|ompi_|hccl|cuda"
    r"|cu[A-Z]|hip[A-Z]|acl|rt[A-Z]|take_gil|drop_gil|_?Py|gc_|collect_main|deduce_unreachable|visit_|subtract_refs"
    r"|update_refs|move_unreachable|untrack_|move_legacy|delete_garbage|handle_weakrefs)"
    r"[\w:~]*(?:\.[a-z]+(?:\.[0-9]+)?)*"
    r"|_?[a-z]+(?:_[a-z]+)*_traverse"
)
"""Functions of C libraries, of the interpreter and of communication libraries, without arguments or templates."""
