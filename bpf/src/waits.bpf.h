/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a system call waits for, beyond its file argument: polled descriptors, lists of futexes, time-outs. */
#ifndef WHYSTALL_WAITS_BPF_H
#define WHYSTALL_WAITS_BPF_H

#include "task_state.bpf.h"
#include "regs.bpf.h"
#include "files.bpf.h"

#define CLOCK_REALTIME 0
#define CLOCK_MONOTONIC 1
#define TIMER_ABSTIME 1
#define FUTEX_WAIT 0
#define FUTEX_LOCK_PI 6
#define FUTEX_WAIT_BITSET 9
#define FUTEX_WAIT_REQUEUE_PI 11
#define FUTEX_LOCK_PI2 13
#define FUTEX_CLOCK_REALTIME 0x100
#define FUTEX_COMMAND 0x7f
#define NS_PER_SECOND 1000000000LL
#define MOST_SECONDS (1LL << 33)	/* more is invalid, and would overflow in nanoseconds */
#define MOST_POLLED 16			/* of more descriptors, the first is not informative */
#define WORDS_SELECTED 4		/* of each set of descriptors, 64 each */

struct user_time { __s64 seconds, part; };	/* struct timespec or timeval of 64-bit programs */

/* Reads a time of the current thread's memory, ns; `unit`: of its second member. -1: none, or not readable. */
static __always_inline __s64 user_time_ns(__u64 address, __s64 unit)
{
	struct user_time time;

	if (!address || bpf_probe_read_user(&time, sizeof(time), (void *)address))
		return -1;
	if (time.seconds < 0 || time.seconds > MOST_SECONDS || time.part < 0 || time.part >= NS_PER_SECOND)
		return -1;
	return time.seconds * NS_PER_SECOND + time.part * unit;
}

/* Returns the time from `now` until an absolute time of a clock, ns. */
static __always_inline __s64 time_until(__u64 address, __u32 clock, __u64 now)
{
	__s64 at = user_time_ns(address, 1);

	if (clock == CLOCK_REALTIME)
		now += config.realtime_offset;
	else if (clock != CLOCK_MONOTONIC)
		return -1;
	if (at < 0)
		return -1;
	return at > (__s64)now ? at - (__s64)now : 0;
}

static __always_inline __s64 futex_time(struct pt_regs *regs, __u64 address, __u64 now)
{
	__u32 operation = regs_arg(regs, 1), command = operation & FUTEX_COMMAND;

	if (command == FUTEX_WAIT)
		return user_time_ns(address, 1);
	if (command == FUTEX_LOCK_PI)
		return time_until(address, CLOCK_REALTIME, now);
	if (command == FUTEX_WAIT_BITSET || command == FUTEX_WAIT_REQUEUE_PI || command == FUTEX_LOCK_PI2)
		return time_until(address, operation & FUTEX_CLOCK_REALTIME ? CLOCK_REALTIME : CLOCK_MONOTONIC, now);
	return -1;	/* it does not wait */
}

/* Returns the time that a call asked to wait at most, ns; -1: none, or unknown. `here`: its memory can be read. */
static __always_inline __s64 asked_time(struct pt_regs *regs, const volatile struct syscall_row *row, bool here,
					__u64 now)
{
	__u8 kind = row->time_kind;
	__u64 value;

	if (kind == TIME_NONE)
		return -1;
	value = regs_arg(regs, row->time);
	if (kind == TIME_MS)
		return (__s32)value < 0 ? -1 : (__s64)(__s32)value * 1000000;
	if (!here || !value)
		return -1;
	if (kind == TIME_SPEC)
		return user_time_ns(value, 1);
	if (kind == TIME_VAL)
		return user_time_ns(value, 1000);
	if (kind == TIME_SLEEP) {
		if (regs_arg(regs, 1) & TIMER_ABSTIME)
			return time_until(value, regs_arg(regs, 0), now);
		return user_time_ns(value, 1);
	}
	if (kind == TIME_FUTEX)
		return futex_time(regs, value, now);
	return time_until(value, regs_arg(regs, row->time + 1), now);
}

/*
 * Returns the lowest descriptor below `number` in a set of select at `address`; FD_UNREAD: it could not be read; -1: the
 * set is empty. Global, so that the verifier looks at it once, and not again for every descriptor that it may return.
 */
__noinline int first_selected(__u64 address, __u32 number)
{
	__u64 bits;
	__u32 at = 0;

	for (__u32 word = 0; word < WORDS_SELECTED && word * 64 < number; word++) {
		if (bpf_probe_read_user(&bits, sizeof(bits), (void *)(address + word * 8)))
			return FD_UNREAD;
		if (number < word * 64 + 64)
			bits &= (1ULL << (number & 63)) - 1;
		if (!bits)
			continue;
		for (__u32 width = 32; width; width >>= 1) {
			if (!(bits & ((1ULL << width) - 1))) {
				bits >>= width;
				at += width;
			}
		}
		return word * 64 + at;
	}
	return -1;
}

/* Returns the first descriptor of an array of struct pollfd; FD_UNREAD: some; -1: there are none. */
static __always_inline __s32 polled_fd(struct pt_regs *regs, bool here)
{
	__u64 number = regs_arg(regs, 1);
	__s32 fd;

	if (!number)
		return -1;
	if (!here || number > MOST_POLLED || bpf_probe_read_user(&fd, sizeof(fd), (void *)regs_arg(regs, 0)))
		return FD_UNREAD;
	return fd < 0 && number > 1 ? FD_UNREAD : fd;	/* negative ones are ignored */
}

/* Returns the first descriptor of the sets of select; FD_UNREAD: some; -1: there are none. */
static __always_inline __s32 selected_fd(struct pt_regs *regs, bool here)
{
	__s32 number = regs_arg(regs, 0), found = -1, fd;
	__u64 address;

	if (number <= 0)
		return -1;
#pragma unroll
	for (int set = 1; set <= 3; set++) {
		address = regs_arg(regs, set);
		if (!address)
			continue;
		if (!here || number > WORDS_SELECTED * 64)
			found = FD_UNREAD;
		if (!here)
			continue;
		fd = first_selected(address, number);
		if (fd >= 0)
			return fd;
		if (fd == FD_UNREAD)
			found = fd;
	}
	return found;
}

/*
 * Completes the result of find_waiting_call. `here`: the task is the current one, so that its memory can be
 * read; else only its registers.
 */
static __noinline int find_request(struct task_struct *task, struct thread_state *state, bool here, __u64 now)
{
	const volatile struct syscall_row *row;
	struct found_file found = {};
	struct pt_regs *regs;
	__u64 address;

	if (!state)
		return 0;
	state->fd = -1;
	state->asked_ns = -1;
	if (state->off_class == OFF_R || state->off_nr < 0)
		return 0;
	row = row_of(state->off_nr);
	if (!row)
		return 0;
	regs = saved_regs(task);
	if (row->fd != NO_ARG) {
		state->fd = fd_arg(regs, row->fd);
	} else if (row->flags & (ROW_POLL | ROW_SELECT)) {
		state->fd = row->flags & ROW_POLL ? polled_fd(regs, here) : selected_fd(regs, here);
		if (state->fd >= 0 && find_task_file(task, state->fd, &found)) {
			state->file = found.key;
			state->file_pointer = (__u64)found.file;
		}
	} else if (row->flags & ROW_FUTEX_LIST && here) {
		/* struct futex_waitv begins with a value and the address of the word */
		if (!bpf_probe_read_user(&address, sizeof(address), (void *)(regs_arg(regs, 0) + 8)))
			state->futex = address;
	}
	state->asked_ns = asked_time(regs, row, here, now);
	return 0;
}

#endif
