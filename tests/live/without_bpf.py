"""Run a command under a seccomp filter that answers bpf(2) and perf_event_open(2) with EPERM, as containers' do."""

from __future__ import annotations

import ctypes as ct
import errno
import os
import struct
import sys

from whystall.bpf import syscalls

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Program(ct.Structure):
    """``struct sock_fprog``."""

    _fields_ = [("len", ct.c_ushort), ("filter", ct.c_void_p)]


numbers = [number for number, name in syscalls.names().items() if name in ("bpf", "perf_event_open")]
code = [
    (_LOAD, 0, 0, 0),  # the number of the call
    (_EQUAL, 1, 0, numbers[0]),
    (_EQUAL, 0, 1, numbers[1]),
    (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    (_RETURN, 0, 0, _ALLOW),
]
instructions = ct.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in code))
program = _Program(len(code), ct.addressof(instructions))
libc = ct.CDLL(None, use_errno=True)
if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _FILTER, ct.byref(program)):
    raise OSError(ct.get_errno(), "no filter")
os.execvp(sys.argv[1], sys.argv[1:])
