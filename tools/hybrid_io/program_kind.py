"""Determine from a program's file whether LD_PRELOAD works for it."""

from __future__ import annotations

import os
import stat
import struct
import sys

_HEAD = 4096
_ELF = struct.Struct("=16sHHIQQQIHHHHHH")
_PART = struct.Struct("=IIQQQQQQ")
_CLASS_64, _INTERPRETER = 2, 3
_DEPTH = 4


def kind_of_program(path: str, depth: int = 0) -> str:
    """Return why LD_PRELOAD does not work: ``static`` (no loader), ``setuid`` (or with capabilities: the loader ignores
    it), ``other_libc`` or ``other_machine`` (it cannot load our library); empty: no known reason. A script is as its
    interpreter.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
            about = os.fstat(file.fileno())
    except OSError:
        return ""
    others = about.st_mode & stat.S_ISUID and about.st_uid != os.getuid()
    if others or (about.st_mode & stat.S_ISGID and about.st_gid != os.getgid()):
        return "setuid"
    if os.getuid() and _has_capabilities(path):
        return "setuid"
    if head.startswith(b"#!"):
        words = head[2:].split(b"\n")[0].split()
        return kind_of_program(os.fsdecode(words[0]), depth + 1) if words and depth < _DEPTH else ""
    if not head.startswith(b"\x7fELF") or len(head) < _ELF.size:
        return ""
    return _kind_of_elf(head)


def _has_capabilities(path: str) -> bool:
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def is_text(path: str) -> bool:
    """Return whether a file may be a script; shells, too, test the first line for NUL."""
    try:
        with open(path, "rb") as file:
            line = file.readline(_HEAD)
    except OSError:
        return False
    return b"\0" not in line and not line.startswith((b"\x7fELF", b"#!"))


def _kind_of_elf(head: bytes) -> str:
    ident, _type, machine, _version, _entry, parts, *_rest, count, _size, _sections, _names = _ELF.unpack_from(head)
    if ident[4] != _CLASS_64 or machine != _own_machine():
        return "other_machine"
    for number in range(count):
        at = parts + number * _PART.size
        if at + _PART.size > len(head):
            return ""
        kind, _flags, offset, _virtual, _physical, bytes_, *_ = _PART.unpack_from(head, at)
        if kind == _INTERPRETER:
            musl = b"musl" in head[offset : offset + bytes_]
            return "other_libc" if musl is not _own_libc_is_musl() else ""
    return "static"


def _own_machine() -> int:
    """Return the ELF machine number of this interpreter."""
    with open(sys.executable, "rb") as file:
        return int(_ELF.unpack(file.read(_ELF.size))[2])


def _own_libc_is_musl() -> bool:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return "/ld-musl" in maps.read()
    except OSError:  # /proc is not mounted
        return False
