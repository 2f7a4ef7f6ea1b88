"""Find the line of the program that a stack is in, and the library code called from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from whystall.tools.stacks.libraries import is_library, is_standard, module_path, short_path
from whystall.tools.stacks.names import HOST_CALLS
from whystall.tools.stacks.waits import python_frame

_COMPILE = "compile"
# Roles of library code by the beginning of its path (see `path_codes.ROLES`).
_ROLES = {
    "torch/utils/data/": "data_loader",
    "tensorflow/python/data/": "data_loader",
    "nvidia/dali/": "data_loader",
    "datasets/": "data_loader",
    "webdataset/": "data_loader",
    "torch/distributed/checkpoint/": "checkpoint",
    "torch/distributed/": "collective",
    "torch/nn/parallel/": "collective",
    "deepspeed/comm/": "collective",
    "horovod/": "collective",
    "mpi4py/": "collective",
    "torch/serialization.py": "checkpoint",
    "torch/storage.py": "checkpoint",
    "safetensors/": "checkpoint",
    "logging/": "logging",
    "loguru/": "logging",
    "torch/utils/tensorboard/": "logging",
    "wandb/": "logging",
    "mlflow/": "logging",
    "http/": "network_client",
    "urllib/": "network_client",
    "urllib3/": "network_client",
    "requests/": "network_client",
    "httpx/": "network_client",
    "httpcore/": "network_client",
    "aiohttp/client": "network_client",
    "botocore/": "network_client",
    "redis/": "network_client",
    "grpc/": "network_client",
    "asyncio/": "event_loop",
    "uvloop/": "event_loop",
    "torch/_dynamo/": _COMPILE,
    "torch/_inductor/": _COMPILE,
    "triton/": _COMPILE,
    "torch/utils/cpp_extension.py": _COMPILE,
    "jax/_src/compiler.py": _COMPILE,
    "numba/core/": _COMPILE,
    "<frozen importlib": "import",
    "importlib/": "import",
    "subprocess.py": "subprocess",
    "gc.py": "garbage_collection",
}
# Modules of compilers that also call compiled code: they are in its stack whenever it runs.
_LAUNCHERS = (
    *("torch/_dynamo/eval_frame.py", "torch/_dynamo/external_utils.py", "torch/_inductor/output_code.py"),
    *("torch/_inductor/utils.py", "torch/_inductor/runtime/", "triton/runtime/jit.py", "triton/runtime/autotuner.py"),
)
# Code that torch.compile writes: cuc4bmo3wh645burzoh5dhc37fkajbsxhnatkjy6kowicfb3hkwn.py, <eval_with_key>.12
_GENERATED = re.compile(r"c[a-z2-7]{51}\.py|<eval_with_key>.*|<string>")
# Modules with the loop itself, of asyncio (also under uvloop and Tornado) and Trio.
_LOOPS = ("asyncio/runners.py", "asyncio/base_events.py", "asyncio/events.py", "uvloop/", "trio/_core/_run.py")
# Modules that start threads and processes.
_STARTERS = ("threading.py", "multiprocessing/", "runpy.py", "<frozen runpy>", "<string>")
# Native functions in which a host waits for an accelerator: CUDA runtime and driver API, HIP, CANN (AscendCL).
_DEVICE_CALLS = (
    *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaStreamWaitEvent"),
    *("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuMemcpy"),
    *("hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize", "hipMemcpy"),
    *("aclrtSynchronize", "aclrtMemcpy", "rtStreamSynchronize", "rtDeviceSynchronize"),
)
# Libraries that drive a device: CUDA, HIP, CANN. Most of their functions have no names.
_DRIVERS = re.compile(r"^\[?lib(cuda|cudart|amdhip64|hsa-runtime64|ascendcl|ascend_hal)(-[0-9a-f.]+)?\.so")
# Functions of PyTorch and its accelerator plug-ins that return when the device is done.
_DEVICE_MODULES = ("torch/cuda/", "torch_npu/npu/", "torch/xpu/", "torch/accelerator/")
# Modules of native frames that do not belong to an extension: the interpreter, its standard library, the C library.
_INTERPRETER = re.compile(r"(lib)?python3|\[|lib[cm]\.so|ld-|linux-vdso|lib(pthread|m|c)-")
_STANDARD = "/lib-dynload/"
_UNNAMED = "[unknown]"
# Function of multiprocessing (also of its copies in billiard and multiprocess) that forks a worker. The frames around
# it are those of the parent at that moment, of which the worker runs none.
_FORKS = ("_launch", "popen_fork.py")
# Functions of Python's garbage collector (Modules/gcmodule.c, Python/gc.c); compilers append suffixes. Functions named
# *_traverse are called by the collector only.
_COLLECTOR_CALLS = (
    *("[garbage collector]", "gc_collect", "_PyGC_Collect", "PyGC_Collect", "collect_main", "deduce_unreachable"),
    *("visit_decref", "visit_reachable", "visit_move", "subtract_refs", "update_refs", "move_unreachable"),
    *("untrack_tuples", "untrack_dicts", "move_legacy_finalizer", "delete_garbage", "handle_weakrefs"),
)
_TRAVERSES = re.compile(r"^_?[a-z]+(_[a-z]+)*_traverse(\.|$)|^traverse_slots(\.|$)")


def _role(module: str) -> str:
    if module.startswith(_LAUNCHERS):
        return ""
    return next((role for beginning, role in _ROLES.items() if module.startswith(beginning)), "")


class Function(NamedTuple):
    """A function of the program: its name and the short path of its file."""

    name: str
    file: str


def _is_elsewhere(short: str) -> bool:
    """Return whether a path is a library's, or that of generated code (proxies of multiprocessing, ``python -c``,
    compiled models)."""
    return is_library(short) or bool(_GENERATED.fullmatch(short))


@dataclass(frozen=True)
class Place:
    """Where a stack is. Frames are innermost first: `python` (name, short path, line) and the `native` ones within the
    innermost of them. `extension`: the module of the innermost native frame, or the call into an accelerator's library;
    empty: the interpreter's.
    """

    python: tuple[tuple[str, str, int], ...] = ()
    native: tuple[str, ...] = ()
    extension: str = ""

    @cached_property
    def own(self) -> tuple[str, str, int] | None:
        """The innermost frame of the program, preferably in a file, else of a package outside the standard library.

        None without one.
        """
        for skip in (_is_elsewhere, is_library, is_standard):
            for frame in self.python:
                if not skip(frame[1]):
                    return frame
        return None

    @property
    def code(self) -> str:
        """The innermost line of Python: ``get (python3.11/queue.py:180)``; empty without one."""
        return text(self.python[0]) if self.python else ""

    @property
    def line(self) -> str:
        """The innermost line of the program: ``train (train.py:41)``; a native function, or empty, without one."""
        if self.own is not None:
            return text(self.own)
        return self.code or (self.native[0] if self.native and self.native[0] != _UNNAMED else "")

    @property
    def function(self) -> Function | None:
        """The innermost function of the program."""
        return Function(self.own[0], self.own[1]) if self.own is not None else None

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """The functions of the program, outermost first."""
        return tuple(Function(name, file) for name, file, _ in reversed(self.python) if not is_library(file))

    @cached_property
    def library(self) -> tuple[tuple[str, str], ...]:
        """Name and module path of the library's frames within the program's innermost one, innermost first."""
        found = []
        for frame in self.python:
            if frame is self.own:
                break
            found.append((frame[0], module_path(frame[1])))
        return tuple(found)

    @cached_property
    def role(self) -> str:
        """What library code it is in (`path_codes.ROLES`), by the innermost known one; empty: none.

        A program that a compiler starts is part of compiling.
        """
        roles = [role for _, module in self.library if (role := _role(module))]
        return _COMPILE if roles[:1] == ["subprocess"] and _COMPILE in roles else next(iter(roles), "")

    @cached_property
    def interpreted(self) -> bool:
        """Whether the interpreter runs the program's own code, or what that calls in the standard library (parsing,
        compiling patterns, shuffling): no package, no extension of one, and no library code with a role of its own."""
        if not self.python or self.extension or self.role:
            return False
        called = self.python[: self.python.index(self.own)] if self.own is not None else self.python
        return all(is_standard(file) for _, file, _ in called)

    @property
    def _callers(self) -> tuple[tuple[str, str, int], ...]:
        """The frames outside of the program's innermost function."""
        return self.python[self.python.index(self.own) + 1 :] if self.own is not None else ()

    @cached_property
    def in_loop_callback(self) -> bool:
        """Whether an event loop called the program's innermost function: it cannot poll meanwhile."""
        return any(module_path(file).startswith(_LOOPS) for _, file, _ in self._callers)

    @cached_property
    def in_handler(self) -> bool:
        """Whether a server or an executor called the program: library code that does more than start its thread."""
        return any(is_library(file) and not module_path(file).startswith(_STARTERS) for _, file, _ in self._callers)

    @cached_property
    def in_device_call(self) -> bool:
        """Whether it waits in a call that returns when an accelerator is done."""
        if any(_function(name).startswith(_DEVICE_CALLS) for name in self.native):
            return True
        return any(name.endswith("synchronize") and module.startswith(_DEVICE_MODULES) for name, module in self.library)

    @cached_property
    def in_driver(self) -> bool:
        """Whether Python called any function of an accelerator's library."""
        if not self.python:
            return False
        called = any(name.startswith(HOST_CALLS) or _DRIVERS.match(name) for name in self.native)
        return called or bool(_DRIVERS.match(self.extension))

    @cached_property
    def in_collector(self) -> bool:
        """Whether Python's garbage collector runs."""
        return any(name.startswith(_COLLECTOR_CALLS) or _TRAVERSES.match(name) for name in self.native)


NOWHERE = Place()


def _function(name: str) -> str:
    """Return the function of a native frame, also of ``GPU: wait for stream (cuStreamSynchronize)``."""
    return name.rpartition("(")[2] if name.startswith(HOST_CALLS) else name


def text(frame: tuple[str, str, int]) -> str:
    """Return a frame of Python as text."""
    name, file, line = frame
    return f"{name} ({file}:{line})" if line else f"{name} ({file})"


def place_of_texts(frames: Sequence[str]) -> Place:
    """Return the place of user frames as recordings of waits have them, innermost first."""
    python: list[tuple[str, str, int]] = []
    native: list[str] = []
    for frame in frames:
        if found := python_frame(frame):
            python.append(found)
        elif not python:
            native.append(frame)
    return Place(_since_fork(python), tuple(native))


def _since_fork(python: Sequence[tuple[str, str, int]]) -> tuple[tuple[str, str, int], ...]:
    """Return the frames without those that a worker process inherited from its parent."""
    name, module = _FORKS
    for at, (function, file, _) in enumerate(python):
        if function.rpartition(".")[2] == name and file.endswith(f"/{module}"):
            return tuple(python[:at])
    return tuple(python)


def place_of_calls(frames: Iterable[tuple[str, str, int, str]]) -> Place:
    """Return the place of sampled frames (name, file, line, kind), innermost first."""
    python: list[tuple[str, str, int]] = []
    native: list[str] = []
    extension = ""
    for name, file, line, kind in frames:
        if kind == "python":
            python.append((name, short_path(file), max(line, 0)))
        elif kind == "launch" and not python:
            extension = extension or (name if not native else "")
            native.append(name)
        elif kind == "native" and not python:
            module = file.rpartition("/")[2]
            if not native and not module and name == _UNNAMED:
                extension = _UNNAMED  # the process has ended: not known to be the interpreter
            elif not native and module and not _INTERPRETER.match(module) and _STANDARD not in file:
                extension = module
            native.append(name)
    return Place(_since_fork(python), tuple(native), extension)
