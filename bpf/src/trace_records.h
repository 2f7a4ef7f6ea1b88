/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Layouts that the trace object shares with user space, see records.h. All records have one size, so that user space
 * splits the ring buffer into columns without reading each.
 */
#ifndef WHYSTALL_TRACE_RECORDS_H
#define WHYSTALL_TRACE_RECORDS_H

/* The comments list the fields in use besides at, cpu and tid, the current thread. */
enum trace_type {
	TRACE_SWITCH = 1,	/* a: when tid got this CPU; b, c: comm of other, the next thread; prio, prio2; value: tid's state */
	TRACE_WAKING,		/* a: tgid and b, c: comm of other, the woken thread; prio2: its priority; value: its CPU */
	TRACE_WAKEUP,		/* the same */
	TRACE_NEW,		/* the same */
	TRACE_MIGRATE,		/* other moves from the CPU value to a */
	TRACE_IRQ_ENTRY,	/* value: number; a, b, c: name */
	TRACE_IRQ_EXIT,		/* value */
	TRACE_SOFTIRQ_ENTRY,	/* value: vector */
	TRACE_SOFTIRQ_EXIT,
	TRACE_SYS_ENTER,	/* other: number; a, b, c: first arguments */
	TRACE_SYS_EXIT,		/* other: number; a: result */
	TRACE_FORK,		/* a: tgid and b, c: comm of other, the child */
	TRACE_EXEC,		/* the same of tid; other: its tid before */
	TRACE_EXIT,		/* the same of tid */
	TRACE_RENAME,		/* the same, other is renamed */
	TRACE_IDLE,		/* a: state, -1 on leaving; value: the CPU it is about */
	TRACE_FREQUENCY,	/* a: kHz; value: the CPU it is about */
	TRACE_BLOCK_INSERT,	/* a: sector; b: bytes; c: dev; value: enum block_op */
	TRACE_BLOCK_ISSUE,	/* the same */
	TRACE_BLOCK_COMPLETE,	/* the same */
	TRACE_LOST,		/* since a, b events of this CPU did not fit the ring buffer */
};

enum trace_flag {
	TRACE_PREEMPTED = 1 << 0,
	TRACE_TASK = 1 << 1,	/* context of a wake-up; no bit: unknown */
	TRACE_SOFTIRQ = 1 << 2,
	TRACE_HARDIRQ = 1 << 3,
	TRACE_NMI = 1 << 4,
};

struct trace_record {
	__u64 at, a, b, c;
	__s32 tid, other;
	__u16 cpu, value;
	__u8 type, flags;
	__u8 prio, prio2;	/* 255: -1, that is deadline scheduling */
};

/* Lost events of one CPU since its last record. */
struct trace_loss {
	__u64 first, count;
};

/* Written by the walk over all threads. */
struct thread_name {
	__s32 tid, tgid;
	char comm[COMM_BYTES];
};

#endif
