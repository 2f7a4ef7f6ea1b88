"""Which system calls are operations on files, and of what sort."""

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
        "statfs fstatfs setxattr fsetxattr getxattr fgetxattr"
    ),
}

FILE_CLASS: dict[str, FileClass] = {call: name for name, calls in _CLASSES.items() for call in calls.split()}
"""System call to class. Calls that move data both ways count by what blocks in practice: sendfile reads,
copy_file_range writes.
"""

ON_FILES: frozenset[str] = frozenset(call for call, name in FILE_CLASS.items() if name in ("sync", "metadata"))
"""System calls about a file whatever their arguments: sleeping in one is waiting for a file server (FUSE, NFS), also
where no open file is known. A read or write may be of a pipe or socket, and then waits for work.
"""

DURABLE = frozenset({"fsync", "fdatasync", "msync", "sync", "syncfs"})
"""System calls after which what was written before is on storage (sync_file_range promises no such thing)."""
