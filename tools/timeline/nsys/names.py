"""Make names of Nsight Systems' events equal for equal operations.

PyTorch appends to a range its own counters (torch/csrc/profiler/util.cpp, ``getNvtxStr``), and Nsight Systems demangles
kernels with their types:

    autograd::engine::evaluate_function: MulBackward0, seq = 12, op_id = 317
    void at::native::elementwise_kernel<(int)128, (int)2, at::native::Add<float>>(int, T3)
    ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)
"""

from __future__ import annotations

import re

from whystall.tools.timeline.profile_reading.build import is_collective

# Numbers of this call, and the shapes and sources of its inputs; the rest of the text belongs to the last of them.
_COUNTERS = re.compile(r", (?:seq|op_id) = -?[0-9]|, (?:sizes|input_op_ids) = \[")
_CAST = re.compile(r"\((?:unsigned |signed )?(?:char|short|int|long long|long|bool)\)(?=-?[0-9])")
_VERSION = re.compile(r"_v[0-9]{4,6}$")  # cudaLaunchKernel_v7000


def range_name(text: str) -> str:
    """Return the text of an NVTX range without PyTorch's counters and shapes."""
    found = _COUNTERS.search(text)
    return text[: found.start()] if found else text


def kernel_name(text: str) -> str:
    """Return a kernel's name without its parameters and the casts of its template arguments. Those stay, for they are
    often all that tells two kernels apart, except for a communication library's, whose name says all."""
    name = text.removeprefix("void ")
    end = _parameters(name)
    if is_collective(plain := name[:end].partition("<")[0]):
        return plain
    return _CAST.sub("", name[:end]) or text


def call_name(text: str) -> str:
    """Return a runtime call's name without the version of its interface."""
    return _VERSION.sub("", text)


def _parameters(name: str) -> int:
    """Return where the parameter list at the end of `name` begins; its length without one."""
    depth = 0
    for at in range(len(name) - 1, 0, -1) if name.endswith(")") else ():
        depth += (name[at] == ")") - (name[at] == "(")
        if depth == 0:
            return at
    return len(name)
