/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The kernel's headers, and everything that differs between kernels, with its version or commit. */
#include <linux/version.h>
#include <linux/sched.h>
#include <linux/fs.h>
#include <linux/fdtable.h>
#include <linux/fs_struct.h>
#include <linux/mount.h>
#include <linux/dcache.h>
#include <linux/mm_types.h>
#include <linux/page-flags.h>
#include <linux/blkdev.h>
#include <linux/blk-mq.h>
#include <linux/interrupt.h>

/* Reading kernel memory in the headers shared with bpf/src; see bpf/src/kernel.bpf.h. */
#define READ(pointer, member) ({							\
	typeof((pointer)->member) value_;						\
	bpf_probe_read_kernel(&value_, sizeof(value_), (void *)&(pointer)->member);	\
	value_;										\
})
#define READ_COMM(to, task) bpf_probe_read_kernel(to, COMM_BYTES, (void *)&(task)->comm)
#define OF_TASK(task, member) READ(task, member)
#define OFFSET_OF(type, member) __builtin_offsetof(type, member)
#define ANONYMOUS_DEV 0
#define SYNC_REQUEST REQ_SYNC
/* `left_` is opaque to the compiler, which would count down from it: before 6.8 the verifier cannot bound such loops. */
#define REPEAT(times, bound, step, context) do {				\
	__u64 left_ = (times);							\
										\
	for (__u32 turn_ = 0; turn_ < (bound); turn_++) {			\
		asm volatile("" : "+r"(left_));					\
		if (turn_ >= left_ || step(turn_, context))			\
			break;							\
	}									\
} while (0)

/* fs/mount.h is not among the headers; its beginning is the same from 3.3 to 6.18. */
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

/* An argument of sched_switch since 5.18, commit fa2c3254d7cf; before, the present state. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 18, 0)
#define STATE_AT_SWITCH(ctx, task) ((unsigned int)(ctx)->args[3])
#else
#define STATE_AT_SWITCH(ctx, task) TASK_STATE_OF(task)
#endif

/* The request is the first argument since 5.11, commit a54895fa057c, and 5.10.137 (iovisor/bcc#4772); before, the queue
 * was. On a 5.10 with another change, the kernel refuses to attach programs that read a second argument. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 10, 137)
#define REQUEST_OF(ctx) ((struct request *)(ctx)->args[0])
#else
#define REQUEST_OF(ctx) ((struct request *)(ctx)->args[1])
#endif

/* Before 5.17 (f3fa33acca9f) a request knows its disk; since 5.15 (d152c682f03c) its queue does. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 17, 0)
static __always_inline struct gendisk *request_disk(struct request *rq)
{
	struct request_queue *queue = READ(rq, q);

	return READ(queue, disk);
}
#else
static __always_inline struct gendisk *request_disk(struct request *rq)
{
	return READ(rq, rq_disk);
}
#endif

/* Registers of a system call. Since 6.9 16 bytes lie above them where FRED is built in. */
#if defined(__x86_64__)
#define __TARGET_ARCH_x86
#ifndef TOP_OF_KERNEL_STACK_PADDING
#define TOP_OF_KERNEL_STACK_PADDING 0
#endif
#define SAVED_SYSCALL orig_ax
#else
#define __TARGET_ARCH_arm64
#undef TOP_OF_KERNEL_STACK_PADDING
#define TOP_OF_KERNEL_STACK_PADDING 0
#define SAVED_SYSCALL syscallno
#endif

/* The page cache holds folios since 5.16, pages before. Bit PG_head is in the first word, whatever its type. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 16, 0)
#define CACHE_OBJECT struct folio
#else
#define CACHE_OBJECT struct page
#endif
#define CACHE_MAPPING(object) READ((CACHE_OBJECT *)(object), mapping)
#define CACHE_INDEX(object) READ((CACHE_OBJECT *)(object), index)

static __always_inline unsigned int cache_order(void *object)
{
	unsigned long flags = 0;

	bpf_probe_read_kernel(&flags, sizeof(flags), object);
	if (!(flags & (1UL << PG_head)))
		return 0;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)	/* ebc1baf5c9b4 */
	return READ((struct folio *)object, _flags_1) & 0xff;
#elif LINUX_VERSION_CODE >= KERNEL_VERSION(6, 1, 0)	/* c3a15bff46cb */
	return READ((struct folio *)object, _folio_order);
#else
	return READ((struct page *)object + 1, compound_order);
#endif
}

/* linux/stackdepot.h declares another stack_record since 6.9. */
#define stack_record whystall_stack_record
