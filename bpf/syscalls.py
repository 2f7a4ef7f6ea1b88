"""System calls: names on both machines, and properties that the BPF programs need.

Numbers: ``asm/unistd_64.h``; on aarch64 ``asm-generic/unistd.h``; up to Linux 6.18.
"""

from __future__ import annotations

import os
from functools import lru_cache

from whystall.bpf import layout as lay

# One line per kind: names | flags and argument numbers (0..5).
# file: a file operation (observed even without targets), meta: on names and attributes, bytes: returns bytes,
# pos: uses the file's own position, vec: size counts iovecs and the argument before points to them.
# reads, writes: the content of `fd`.
# locks: takes locks of files, starts: a process or a thread.
# poll: an array of struct pollfd and its length, select: a number and three sets of descriptors, list: of struct
# futex_waitv, sends: may send to a socket.
# Arguments that state how long to wait at most (see `_TIMES`): ms, spec, val, sleep, futex_time, absolute.
# The offset of msync is an address; user space finds the mapped file.
_ROWS = """
read | file bytes pos reads fd=0 size=2
write | file bytes pos writes sends fd=0 size=2
readv | file bytes pos vec reads fd=0 size=2
writev | file bytes pos vec writes sends fd=0 size=2
pread64 | file bytes reads fd=0 size=2 offset=3
pwrite64 | file bytes writes fd=0 size=2 offset=3
preadv preadv2 | file bytes vec reads fd=0 size=2 offset=3
pwritev pwritev2 | file bytes vec writes fd=0 size=2 offset=3
fsync fdatasync | file fd=0
sync_file_range | file fd=0 offset=1 size=2
msync | file offset=0 size=1
sync | file
syncfs | file fd=0
sendfile | file bytes reads sends fd=1 fd2=0 size=3
copy_file_range | file bytes fd=0 fd2=2 size=4
splice | file bytes sends fd=0 fd2=2 size=4
readahead | file fd=0 offset=1 size=2
fallocate | file meta fd=0 offset=2 size=3
open creat | file meta returns_fd path=0
openat openat2 | file meta returns_fd dir=0 path=1
close | file meta closes sends fd=0
unlink rmdir mkdir mknod chmod chown lchown stat lstat access readlink statfs utimes | file meta path=0
unlinkat mkdirat mknodat fchmodat fchmodat2 fchownat newfstatat statx faccessat faccessat2 | file meta dir=0 path=1
readlinkat utimensat | file meta dir=0 path=1
setxattr lsetxattr getxattr lgetxattr listxattr llistxattr removexattr lremovexattr | file meta path=0
setxattrat getxattrat listxattrat removexattrat | file meta dir=0 path=1
fsetxattr fgetxattr flistxattr fremovexattr | file meta fd=0
rename link | file meta path=0 path2=1
renameat renameat2 linkat | file meta dir=0 path=1 dir2=2 path2=3
symlink | file meta path=1
symlinkat | file meta dir=1 path=2
truncate | file meta path=0 size=1
ftruncate | file meta fd=0 size=1
fstat fstatfs fchmod fchown | file meta fd=0
flock | file meta locks fd=0
getdents getdents64 | file meta bytes fd=0 size=2
execve | path=0
execveat | dir=0 path=1
lseek ioctl fadvise64 | fd=0
fcntl | locks fd=0
clone clone3 fork vfork | starts
recvfrom | bytes fd=0 size=2
sendto | bytes sends fd=0 size=2
recvmsg | bytes fd=0
sendmsg | bytes sends fd=0
recvmmsg | fd=0 spec=4
sendmmsg connect shutdown io_uring_enter | sends fd=0
accept accept4 | fd=0
epoll_wait epoll_pwait | fd=0 ms=3
epoll_pwait2 | fd=0 spec=3
poll | poll ms=2
ppoll | poll spec=2
select | select val=4
pselect6 | select spec=4
io_getevents io_pgetevents | spec=4
nanosleep | spec=0
clock_nanosleep | sleep=2
rt_sigtimedwait | spec=2
semtimedop | spec=3
mmap | fd=4 size=1
getrandom | bytes size=1
vmsplice tee | bytes fd=0
futex | futex futex_time=3
futex_wait | futex absolute=4
futex_waitv | list absolute=3
"""

_FLAGS = {
    "file": lay.ROW_FILE_OP,
    "meta": lay.ROW_METADATA,
    "bytes": lay.ROW_BYTES,
    "pos": lay.ROW_POSITION,
    "returns_fd": lay.ROW_RETURNS_FD,
    "vec": lay.ROW_VECTOR,
    "closes": lay.ROW_CLOSES,
    "futex": lay.ROW_FUTEX,
    "reads": lay.ROW_READS,
    "writes": lay.ROW_WRITES,
    "poll": lay.ROW_POLL,
    "select": lay.ROW_SELECT,
    "list": lay.ROW_FUTEX_LIST,
    "sends": lay.ROW_SENDS,
    "locks": lay.ROW_FILE_LOCK,
    "starts": lay.ROW_STARTS,
}
_TIMES = {
    "ms": lay.TIME_MS,
    "spec": lay.TIME_SPEC,
    "val": lay.TIME_VAL,
    "sleep": lay.TIME_SLEEP,
    "futex_time": lay.TIME_FUTEX,
    "absolute": lay.TIME_ABSOLUTE,
}
_ARGUMENTS = ("fd", "fd2", "path", "dir", "path2", "dir2", "size", "offset")

_X86_64 = """
0: read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask
rt_sigreturn ioctl pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise
shmget shmat shmctl dup dup2 pause nanosleep getitimer alarm setitimer getpid sendfile socket connect accept
sendto recvfrom sendmsg recvmsg shutdown bind listen getsockname getpeername socketpair setsockopt
getsockopt clone fork vfork execve exit wait4 kill uname semget semop semctl shmdt msgget msgsnd msgrcv
msgctl fcntl flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat
link unlink symlink readlink chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo
times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid getppid getpgrp setsid setreuid
setregid getgroups setgroups setresuid getresuid setresgid getresgid getpgid setfsuid setfsgid getsid capget
capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod uselib
personality ustat statfs fstatfs sysfs getpriority setpriority sched_setparam sched_getparam
sched_setscheduler sched_getscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval
mlock munlock mlockall munlockall vhangup modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex setrlimit
chroot sync acct settimeofday mount umount2 swapon swapoff reboot sethostname setdomainname iopl ioperm
create_module init_module delete_module get_kernel_syms query_module quotactl nfsservctl getpmsg putpmsg
afs_syscall tuxcall security gettid readahead setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr
listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr tkill time futex sched_setaffinity
sched_getaffinity set_thread_area io_setup io_destroy io_getevents io_submit io_cancel get_thread_area
lookup_dcookie epoll_create epoll_ctl_old epoll_wait_old remap_file_pages getdents64 set_tid_address
restart_syscall semtimedop fadvise64 timer_create timer_settime timer_gettime timer_getoverrun timer_delete
clock_settime clock_gettime clock_getres clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes
vserver mbind set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify
mq_getsetattr kexec_load waitid add_key request_key keyctl ioprio_set ioprio_get inotify_init
inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat futimesat newfstatat
unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll unshare set_robust_list
get_robust_list splice tee sync_file_range vmsplice move_pages utimensat epoll_pwait signalfd timerfd_create
eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1 dup3 pipe2
inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init fanotify_mark
prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns getcpu process_vm_readv
process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create
kexec_file_load bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect
pkey_alloc pkey_free statx io_pgetevents rseq uretprobe uprobe
424: pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig
fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2
mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret
process_mrelease futex_waitv set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake
futex_wait futex_requeue statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal
setxattrat getxattrat listxattrat removexattrat open_tree_attr file_getattr file_setattr
"""
_AARCH64 = """
0: io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr lgetxattr
fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd lookup_dcookie
eventfd2 epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1 inotify_add_watch inotify_rm_watch
ioctl ioprio_set ioprio_get flock mknodat mkdirat unlinkat symlinkat linkat renameat umount2 mount
pivot_root nfsservctl statfs fstatfs truncate ftruncate fallocate faccessat chdir fchdir chroot fchmod
fchmodat fchownat fchown openat close vhangup pipe2 quotactl getdents64 lseek read write readv writev
pread64 pwrite64 preadv pwritev sendfile pselect6 ppoll signalfd4 vmsplice splice tee readlinkat newfstatat
fstat sync fsync fdatasync sync_file_range timerfd_create timerfd_settime timerfd_gettime utimensat acct
capget capset personality exit exit_group waitid set_tid_address unshare futex set_robust_list
get_robust_list nanosleep getitimer setitimer kexec_load init_module delete_module timer_create
timer_gettime timer_getoverrun timer_settime timer_delete clock_settime clock_gettime clock_getres
clock_nanosleep syslog ptrace sched_setparam sched_setscheduler sched_getscheduler sched_getparam
sched_setaffinity sched_getaffinity sched_yield sched_get_priority_max sched_get_priority_min
sched_rr_get_interval restart_syscall kill tkill tgkill sigaltstack rt_sigsuspend rt_sigaction
rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigreturn setpriority getpriority reboot
setregid setgid setreuid setuid setresuid getresuid setresgid getresgid setfsuid setfsgid times setpgid
getpgid getsid setsid getgroups setgroups uname sethostname setdomainname getrlimit setrlimit getrusage
umask prctl getcpu gettimeofday settimeofday adjtimex getpid getppid getuid geteuid getgid getegid gettid
sysinfo mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl msgrcv msgsnd
semget semctl semtimedop semop shmget shmctl shmat shmdt socket socketpair bind listen accept connect
getsockname getpeername sendto recvfrom setsockopt getsockopt shutdown sendmsg recvmsg readahead brk munmap
mremap add_key request_key keyctl clone execve mmap fadvise64 swapon swapoff mprotect msync mlock munlock
mlockall munlockall mincore madvise remap_file_pages mbind get_mempolicy set_mempolicy migrate_pages
move_pages rt_tgsigqueueinfo perf_event_open accept4 recvmmsg
260: wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at clock_adjtime syncfs
setns sendmmsg process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2
seccomp getrandom memfd_create bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2
pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq kexec_file_load
424: pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig
fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2
mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret
process_mrelease futex_waitv set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake
futex_wait futex_requeue statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal
setxattrat getxattrat listxattrat removexattrat open_tree_attr file_getattr file_setattr
"""


@lru_cache(maxsize=2)
def names(machine: str | None = None) -> dict[int, str]:
    """Return the names by number of a machine's system calls (``x86_64`` or ``aarch64``; default: this one).

    Raises ``KeyError`` for another machine.
    """
    text = {"x86_64": _X86_64, "aarch64": _AARCH64}[machine or os.uname().machine]
    table: dict[int, str] = {}
    number = 0
    for word in text.split():
        if word.endswith(":"):
            number = int(word[:-1])
        else:
            table[number] = word
            number += 1
    return table


def name(nr: int, machine: str | None = None) -> str:
    """Return the name of a system call: ``syscall_<nr>`` if unknown, empty for -1 (not in a system call)."""
    return "" if nr < 0 else names(machine).get(nr, f"syscall_{nr}")


@lru_cache(maxsize=1)
def _described() -> dict[str, dict[str, int]]:
    rows: dict[str, dict[str, int]] = {}
    for line in _ROWS.strip().splitlines():
        calls, words = line.split(" | ")
        row = dict.fromkeys(_ARGUMENTS, lay.NO_ARG)
        row["flags"] = 0
        for word in words.split():
            argument, _, value = word.partition("=")
            if argument in _TIMES:
                row |= {"time": int(value), "time_kind": _TIMES[argument]}
            elif value:
                row[argument] = int(value)
            else:
                row["flags"] |= _FLAGS[argument]
        rows.update(dict.fromkeys(calls.split(), row))
    return rows


def row(call: str) -> dict[str, int]:
    """Return ``flags`` and argument numbers of a call by name; `NO_ARG` where unknown."""
    return _described().get(call) or {**dict.fromkeys(_ARGUMENTS, lay.NO_ARG), "flags": 0}


def is_file_operation(call: str) -> bool:
    """Return whether a call works on a file or a name in a file system."""
    return bool(row(call)["flags"] & lay.ROW_FILE_OP)


def rows_image(machine: str | None = None) -> bytes:
    """Return the table of rows for the BPF programs."""
    image = (lay.SyscallRow * lay.SYSCALL_ROWS)()
    by_number = names(machine)
    for number in range(lay.SYSCALL_ROWS):
        for member, value in row(by_number.get(number, "")).items():
            setattr(image[number], member, value)
    return bytes(image)
