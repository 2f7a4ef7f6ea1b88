/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What all programs for BCC share. tools/collect/bcc/own_source.py joins the files of this directory, behind bpf/src/records.h
 * and the settings of a window (CALL_MIN_NS ...), into one text, which BCC compiles against the headers of the running
 * kernel: no BTF, no kprobe, raw tracepoints only (4.17, c4f6699dfcb8). What differs between kernels is in this file.
 *
 * Map functions must not stand within macros, and a program's helpers are inlined: so BCC wants it.
 */
#include <linux/version.h>
#include <linux/sched.h>
#include <linux/fs.h>
#include <linux/fdtable.h>
#include <linux/fs_struct.h>
#include <linux/mount.h>
#include <linux/dcache.h>
#include <linux/blkdev.h>
#include <linux/blk-mq.h>
#include <linux/interrupt.h>

#define READ(pointer, member) ({							\
	typeof((pointer)->member) value_;						\
	bpf_probe_read_kernel(&value_, sizeof(value_), (void *)&(pointer)->member);	\
	value_;										\
})
#define HERE static __always_inline

/* fs/mount.h is not among the headers; its beginning is the same from 3.3 (7d6fec45a5131) to 6.18. */
struct mount {
	struct hlist_node mnt_hash;
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};

/* 5.14 renamed task_struct.state, commit 2f064a59a11f. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 14, 0)
#define TASK_STATE_OF(task) READ(task, __state)
#else
#define TASK_STATE_OF(task) ((unsigned int)READ(task, state))
#endif

/* sched_switch tells prev's state since 5.18, commit fa2c3254d7cf; before, what it is by now. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 18, 0)
#define STATE_AT_SWITCH(ctx, task) ((unsigned int)(ctx)->args[3])
#else
#define STATE_AT_SWITCH(ctx, task) TASK_STATE_OF(task)
#endif

/* The request is the first argument since 5.11, commit a54895fa057c; before, the queue was. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 11, 0)
#define REQUEST_OF(ctx) ((struct request *)(ctx)->args[0])
#else
#define REQUEST_OF(ctx) ((struct request *)(ctx)->args[1])
#endif

/* Before 5.17 (f3fa33acca9f) a request knows its disk; since 5.15 (d152c682f03c) its queue does. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 17, 0)
HERE struct gendisk *disk_of(struct request *rq)
{
	struct request_queue *queue = READ(rq, q);

	return READ(queue, disk);
}
#else
HERE struct gendisk *disk_of(struct request *rq)
{
	return READ(rq, rq_disk);
}
#endif

/* Registers of a system call. 16 bytes lie above them since 6.9 where FRED is built in, commit 65c9cc9e2c14. */
#if defined(__x86_64__)
#ifndef TOP_OF_KERNEL_STACK_PADDING
#define TOP_OF_KERNEL_STACK_PADDING 0
#endif
#define REGS_CALL(regs) ((__s32)READ(regs, orig_ax))
#define REGS_FIRST(regs) READ(regs, di)
#define REGS_SECOND(regs) READ(regs, si)
#define REGS_THIRD(regs) READ(regs, dx)
#define REGS_FOURTH(regs) READ(regs, r10)
#define REGS_FIFTH(regs) READ(regs, r8)
#define IS_COMPAT(task) (READ(task, thread_info.status) & 0x2)	/* TS_COMPAT */
#define DIRECT_BIT 040000
#else
#undef TOP_OF_KERNEL_STACK_PADDING
#define TOP_OF_KERNEL_STACK_PADDING 0
#define REGS_CALL(regs) ((__s32)READ(regs, syscallno))
#define REGS_FIRST(regs) READ(regs, orig_x0)	/* regs[0] becomes the result */
#define REGS_SECOND(regs) READ(regs, regs[1])
#define REGS_THIRD(regs) READ(regs, regs[2])
#define REGS_FOURTH(regs) READ(regs, regs[3])
#define REGS_FIFTH(regs) READ(regs, regs[4])
#define IS_COMPAT(task) (READ(task, thread_info.flags) & (1UL << 22))	/* TIF_32BIT */
#define DIRECT_BIT 0200000
#endif
#define DSYNC_BIT 010000
#define CWD_FD (-100)
#define PATH_NAMES 48
#define PATH_SLACK (PATH_BYTES + 512)

BPF_ARRAY(live, struct live, 1);
BPF_PERCPU_ARRAY(counters, struct counters, 1);
BPF_PERF_OUTPUT(events);

HERE void count(enum counter which)
{
	int zero = 0;
	struct counters *mine = counters.lookup(&zero);

	if (mine)
		__sync_fetch_and_add(&mine->count[which], 1);	/* interrupts may count too */
}

/* When the window began; 0: not yet, and then only what threads are doing is kept. */
HERE __u64 window_start(void)
{
	int zero = 0;
	struct live *now = live.lookup(&zero);

	return now ? now->window_start : 0;
}

HERE bool is_self(__u32 tgid)
{
	return tgid == PARENT_TGID || tgid == CHILD_TGID;
}

#if EVERYBODY
HERE bool is_traced(__u32 tgid)
{
	return tgid && !is_self(tgid);
}
#else
BPF_HASH(targets, __u32, __u8, 1024);

HERE bool is_traced(__u32 tgid)
{
	return targets.lookup(&tgid) != 0;
}

#if FOLLOW
/* (parent, child): a new process of a target becomes one */
int on_fork(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *parent = (struct task_struct *)ctx->args[0], *child = (struct task_struct *)ctx->args[1];
	__u32 from = READ(parent, tgid), tgid = READ(child, tgid);
	__u8 one = 1;

	if (from != tgid && is_traced(from) && targets.update(&tgid, &one))
		count(LOST_TARGETS);
	return 0;
}
#endif
#endif

/* Log-linear: exact below 8, then 8 steps per doubling; user space inverts it (layout.slot_bounds). */
HERE __u32 slot_of(__u64 value)
{
	__u64 rest = value;
	__u32 log = 0;

	if (value < 8)
		return value;
	if (rest >> 32) { rest >>= 32; log += 32; }
	if (rest >> 16) { rest >>= 16; log += 16; }
	if (rest >> 8) { rest >>= 8; log += 8; }
	if (rest >> 4) { rest >>= 4; log += 4; }
	if (rest >> 2) { rest >>= 2; log += 2; }
	if (rest >> 1) { log += 1; }
	return ((log - 3) << 3) + (__u32)(value >> (log - 3));
}
