/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The floor: programs that do nothing, on the hooks that the system call collector uses. */
#include "kernel.bpf.h"

SEC("tp_btf/sys_enter")
int empty_enter(__u64 *ctx)
{
	return 0;
}

SEC("tp_btf/sys_exit")
int empty_exit(__u64 *ctx)
{
	return 0;
}

SEC("tp_btf/sched_switch")
int empty_switch(__u64 *ctx)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
