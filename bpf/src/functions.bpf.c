/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A record for each entry into, and return from, functions of programs and libraries. What they are, and which arguments
 * are recorded, is in the cookies of the probes: see struct function_record. Needs bpf_get_attach_cookie (since 5.15,
 * 7adfc6c9b315).
 */
#include "common.bpf.h"
#include "function_records.h"
#include "user_regs.bpf.h"

/* Unused: adds the struct to the object's BTF. */
const struct function_record described SEC(".rodata.described") = {};

static __always_inline __u64 returned(struct user_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs->ax;
#else
	return regs->regs[0];
#endif
}

/* Arguments that are integers or pointers, by the calling conventions (System V AMD64, AAPCS64). */
static __always_inline bool argument(struct user_regs *regs, __u32 which, __u64 *value)
{
#if defined(__TARGET_ARCH_x86)
	switch (which) {
	case 0: *value = regs->di; return true;
	case 1: *value = regs->si; return true;
	case 2: *value = regs->dx; return true;
	case 3: *value = regs->cx; return true;
	case 4: *value = regs->r8; return true;
	case 5: *value = regs->r9; return true;
	}
	/* the first on the stack, behind the return address */
	return !bpf_probe_read_user(value, sizeof(*value), (void *)(regs->sp + 8));
#else
	switch (which) {
	case 0: *value = regs->regs[0]; return true;
	case 1: *value = regs->regs[1]; return true;
	case 2: *value = regs->regs[2]; return true;
	case 3: *value = regs->regs[3]; return true;
	case 4: *value = regs->regs[4]; return true;
	case 5: *value = regs->regs[5]; return true;
	}
	*value = regs->regs[6];
	return true;
#endif
}

/* If the lowest bit of `how` is set, replaces `value` by the 8 bytes at the address `value` + 8 * `offset`. */
static __always_inline bool load(__u64 *value, __u32 how, __u32 offset)
{
	return !(how & 1) || !bpf_probe_read_user(value, sizeof(*value), (void *)(*value + 8 * offset));
}

static __always_inline struct function_record *begin(void *ctx, __u64 cookie, enum function_event event)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct function_record *record;
	__u32 tgid = thread >> 32;

	if (!window_open())
		return 0;
	if (is_self(tgid))
		count(SELF_CALLS);
	if (is_self(tgid) || !is_traced(tgid))
		return 0;
	record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
	if (!record) {
		count(LOST_RING_CALL);
		return 0;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->at = bpf_ktime_get_ns();
	record->tgid = tgid;
	record->tid = thread;
	record->function = cookie & ((1 << FUNCTION_BITS) - 1);
	record->event = event;
	return record;
}

SEC("uprobe")
int on_entry(struct user_regs *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);
	struct function_record *record = begin(ctx, cookie, FUNCTION_ENTERED);

	if (!record)
		return 0;
	cookie >>= FUNCTION_BITS;
#pragma unroll
	for (int i = 0; i < VALUE_COUNT; i++, cookie >>= VALUE_BITS) {
		__u32 which = cookie & ARGUMENT_NONE;
		__u32 first = cookie >> ARGUMENT_BITS, second = cookie >> (ARGUMENT_BITS + 1 + LOAD_BITS);
		__u64 value = 0;

		if (which == ARGUMENT_NONE)
			continue;
		if (!argument(ctx, which, &value) ||
		    !load(&value, first, (first >> 1) & ((1 << LOAD_BITS) - 1)) ||
		    !load(&value, second, (second >> 1) & ((1 << NEXT_BITS) - 1))) {
			record->unread |= 1 << i;
			continue;
		}
		record->values[i] = value;
	}
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("uretprobe")
int on_return(struct user_regs *ctx)
{
	struct function_record *record = begin(ctx, bpf_get_attach_cookie(ctx), FUNCTION_RETURNED);

	if (!record)
		return 0;
	record->values[0] = returned(ctx);
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
