/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The other way to hook a system call: empty programs on the tracepoints of one of them. */
#include "kernel.bpf.h"

SEC("tp/syscalls/sys_enter_pread64")
int pread_enter(void *ctx)
{
	return 0;
}

SEC("tp/syscalls/sys_exit_pread64")
int pread_exit(void *ctx)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
