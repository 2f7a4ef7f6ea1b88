"""Classify the system calls that are operations on files."""

from __future__ import annotations

from typing import Literal

FileClass = Literal["read", "write", "sync", "metadata"]

_CLASSES: dict[FileClass, str] = {
    "read": "read readv pread64 preadv preadv2 sendfile splice",
    "write": "write writev pwrite64 pwritev pwritev2 copy_file_range",
    "sync": "fsync fdatasync sync_file_range msync sync syncfs",
    "metadata": (
        "open openat openat2 creat close unlink unlinkat rename renameat renameat2 truncate ftruncate fallocate "
        "stat lstat fstat newfstatat statx mkdir mkdirat rmdir link linkat symlink symlinkat readlink readlinkat "
        "access faccessat faccessat2 chmod fchmod fchmodat chown lchown fchown fchownat utimensat getdents getdents64 "
        "statfs fstatfs setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr "
        "removexattr lremovexattr fremovexattr setxattrat getxattrat listxattrat removexattrat"
    ),
}

FILE_CLASS: dict[str, FileClass] = {call: name for name, calls in _CLASSES.items() for call in calls.split()}
"""System call to class. Calls that both read and write are classified by what blocks in practice: sendfile reads,
copy_file_range writes.
"""

ON_FILES: frozenset[str] = frozenset(call for call, name in FILE_CLASS.items() if name in ("sync", "metadata"))
"""System calls on files, whatever their arguments: sleeping in one is waiting for a file server (FUSE, NFS), even if
the open file is unknown. A read or write may be on a pipe or socket, where sleeping is waiting for work.
"""

DURABLE = frozenset({"fsync", "fdatasync", "msync", "sync", "syncfs"})
"""System calls after which earlier writes are on storage (sync_file_range does not guarantee that)."""
