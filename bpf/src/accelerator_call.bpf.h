/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The function of an accelerator's library in which a thread is, see accelerator.bpf.h. */
#ifndef WHYSTALL_ACCELERATOR_CALL_H
#define WHYSTALL_ACCELERATOR_CALL_H

#include "common.bpf.h"

/* sp: the stack pointer at its entry; function 0: in none. */
struct accelerator_call {
	__u64 sp, since;
	__u32 function, pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct accelerator_call);
} accelerator_calls SEC(".maps");

/* Returns the number of the function in which a thread is; 0: none. */
static __always_inline __u32 accelerator_function(__u32 tid)
{
	const struct accelerator_call *call;

	if (!config.accelerator)
		return 0;
	call = bpf_map_lookup_elem(&accelerator_calls, &tid);
	return call ? call->function : 0;
}

#endif
