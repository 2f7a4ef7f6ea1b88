/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The kernel's types, with only the members used here, relocated at load (CO-RE), and all differences between kernels
 * from 5.8 on, each with its version or commit. Those visible in types are handled here; the others are detected before
 * the load (bpf/session.py, bpf/collectors/page_cache.py) and passed in `config`.
 *
 * Tracepoints that not every kernel has, or not with the same arguments:
 *   sched_switch: prev's state is a fourth argument since 5.18 (fa2c3254d7cf)
 *   block_rq_insert, block_rq_issue: the request is the only argument since 5.11 (a54895fa057c, also in later 5.10.y)
 *   block_bio_queue: the bio is the only argument since 5.11, and names its device since 5.12 (309dca309fc3)
 *   mm_vmscan_throttled: since 5.16 (8cd7c588decf)
 *   contention_begin, contention_end: since 5.19 (16edd9b511a1)
 *   writeback_dirty_folio: since 5.18, before it is writeback_dirty_page
 *   mm_filemap_get_pages, mm_filemap_fault, mm_filemap_map_pages: since 6.12
 *   balance_dirty_pages: 8 arguments since 6.16, 12 before
 */
#ifndef WHYSTALL_KERNEL_H
#define WHYSTALL_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
#include <stdbool.h>

/* UAPI numbers (include/uapi/linux/bpf.h), so that no kernel header is needed. */
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_MAP_TYPE_RINGBUF 27
#define BPF_MAP_TYPE_TASK_STORAGE 29	/* since 5.11 (4cf1bc1f1045) */
#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_F_NO_PREALLOC 1
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1
#define BPF_F_USER_STACK (1ULL << 8)
#define BPF_RB_NO_WAKEUP 1
#define BPF_RB_FORCE_WAKEUP 2
#define BPF_RB_AVAIL_DATA 0

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define CORE __attribute__((preserve_access_index))

/* Reading kernel memory in the headers shared with bpf/src_bcc; src_bcc/kernel.bcc.h defines the same for BCC. */
#define READ(pointer, member) BPF_CORE_READ(pointer, member)
#define READ_COMM(to, task) BPF_CORE_READ_INTO(&(to), task, comm)
#define OFFSET_OF(type, member) bpf_core_field_offset(type, member)
#define SYNC_REQUEST (1U << bpf_core_enum_value(enum req_flag_bits, __REQ_SYNC))

struct file_system_type { const char *name; } CORE;
struct block_device { __u32 bd_dev; } CORE;
struct super_block {
	__u32 s_dev;
	struct file_system_type *s_type;
	unsigned long s_magic;
	struct block_device *s_bdev;
} CORE;
struct rw_semaphore { void *unused; };
struct hlist_node { struct hlist_node *next; } CORE;
struct hlist_head { struct hlist_node *first; } CORE;
struct inode;
struct xarray { void *xa_head; } CORE;
struct xa_node { unsigned char shift; void *slots[64]; } CORE;
struct address_space { struct inode *host; struct xarray i_pages; } CORE;
struct inode {
	__u16 i_mode;
	struct super_block *i_sb;
	struct address_space *i_mapping;
	unsigned long i_ino;
	__u32 i_rdev;
	__u32 i_generation;
	long long i_size;
	struct rw_semaphore i_rwsem;
	struct hlist_head i_dentry;
} CORE;
struct qstr { __u32 len; const unsigned char *name; } CORE;
struct hlist_bl_node { struct hlist_bl_node **pprev; } CORE;
struct dentry {
	struct hlist_bl_node d_hash;
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
	union { struct hlist_node d_alias; } d_u;
} CORE;
struct vfsmount { struct dentry *mnt_root; } CORE;
struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
} CORE;
struct path { struct vfsmount *mnt; struct dentry *dentry; } CORE;
struct file {
	struct inode *f_inode;
	struct address_space *f_mapping;
	unsigned int f_flags;
	void *private_data;
	struct path f_path;
	long long f_pos;
} CORE;
struct fdtable { unsigned int max_fds; struct file **fd; } CORE;
struct files_struct { struct fdtable *fdt; } CORE;
struct fs_struct { struct path pwd; } CORE;
struct sched_info { unsigned long pcount; unsigned long long run_delay, last_arrival, last_queued; } CORE;
struct rq { __u64 clock, clock_task; } CORE;
struct cfs_rq { struct rq *rq; } CORE;
struct sched_entity { __u64 exec_start; struct cfs_rq *cfs_rq; } CORE;
struct signal_set { unsigned long sig[1]; } CORE;
struct sigpending { struct signal_set signal; } CORE;
struct signal_struct { struct sigpending shared_pending; } CORE;
struct hrtimer { __u8 is_soft; } CORE;

#if defined(__TARGET_ARCH_x86)
struct thread_info { __u32 status, cpu; } CORE;
struct pt_regs { unsigned long di, si, dx, r10, r8, r9, orig_ax, ip, sp; } CORE;
#elif defined(__TARGET_ARCH_arm64)
struct thread_info { unsigned long flags; __u64 preempt_count; __u32 cpu; } CORE;
struct pt_regs { __u64 regs[31]; __u64 sp, pc, orig_x0; __s32 syscallno; } CORE;
#else
#error "build for x86 or arm64"
#endif

struct upid { int nr; } CORE;
struct pid { unsigned int level; struct upid numbers[1]; } CORE;
#if defined(__TARGET_ARCH_x86)
struct thread_struct { unsigned long fsbase; } CORE;
#else
struct thread_struct { struct { unsigned long tp_value; } uw; } CORE;
#endif

struct task_io_accounting { __u64 syscr; } CORE;

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	void *stack;
	unsigned int flags;
	int on_cpu, prio, exit_state;
	struct sched_entity se;
	struct sched_info sched_info;
	int pid, tgid;
	__u64 start_time;
	char comm[16];
	void *mm;
	struct fs_struct *fs;
	struct files_struct *files;
	struct pid *thread_pid;
	struct task_struct *group_leader;
	struct task_io_accounting ioac;
	struct thread_struct thread;
	struct signal_struct *signal;
	struct signal_set blocked;
	struct sigpending pending;
} CORE;

/* Moved to thread_info in 5.16, commit bcf9033e5449. */
struct task_struct___before_5_16 { unsigned int cpu; } CORE;
/* 5.14 renamed state, commit 2f064a59a11f. */
struct task_struct___before_5_14 { volatile long state; } CORE;

struct irqaction { const char *name; } CORE;

struct gendisk { int major, first_minor; } CORE;
struct request_queue { struct gendisk *disk; } CORE;
struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	unsigned int __data_len;
	__u64 __sector;
	__u64 start_time_ns;
} CORE;
/* request_queue.disk: since 5.15 (d152c682f03c); request.rq_disk: removed in 5.17 (f3fa33acca9f). */
struct request___before_5_17 { struct gendisk *rq_disk; } CORE;

/* The first word holds the flags; only their type changed in 6.18 (53fbef56e07d). */
struct folio {
	struct address_space *mapping;
	unsigned long index;
	unsigned long _flags_1;		/* the order of a large folio in its lowest byte since 6.6 (ebc1baf5c9b4) */
} CORE;
struct folio___before_6_6 { unsigned char _folio_order; } CORE;	/* since 6.1 (c3a15bff46cb) */
/* Before 5.16 the page cache reports pages; until 6.1 the second page of a compound page holds the order. */
struct page { struct address_space *mapping; unsigned long index; unsigned long compound_head; } CORE;
struct page___before_6_2 { unsigned char compound_order; } CORE;
enum pageflags { PG_head = 16 };

struct bvec_iter { unsigned int bi_size; } CORE;
struct bio_vec { struct page *bv_page; } CORE;
/* bi_bdev: since 5.12 (309dca309fc3) */
struct bio {
	struct block_device *bi_bdev;
	unsigned int bi_opf;
	struct bvec_iter bi_iter;
	struct bio_vec *bi_io_vec;
} CORE;

struct seq_file { void *private; } CORE;
struct bpf_iter_meta { struct seq_file *seq; } CORE;
struct bpf_iter__task { struct bpf_iter_meta *meta; struct task_struct *task; } CORE;

enum req_flag_bits { __REQ_SYNC = 11 };

#define PF_IO_WORKER 0x10
#define PF_MEMALLOC 0x800	/* the task is reclaiming memory */
#define PF_USER_WORKER 0x4000	/* since 6.4, 54e6842d0775 */
#define PF_KTHREAD 0x200000

static __always_inline unsigned int task_state(struct task_struct *task)
{
	struct task_struct___before_5_14 *old = (void *)task;

	if (bpf_core_field_exists(task->__state))
		return BPF_CORE_READ(task, __state);
	return BPF_CORE_READ(old, state);
}

#include "records.h"

const volatile struct config config SEC(".rodata.config") = {};

#define ANONYMOUS_DEV config.anonymous_dev

/* bpf_get_current_task_btf: since 5.11 (3ca1032ab7ab). */
static __always_inline struct task_struct *current_task(void)
{
	if (config.current_btf)
		return bpf_get_current_task_btf();
	return (struct task_struct *)bpf_get_current_task();
}

/* Without current_btf the verifier does not know the pointer's type. */
#define OF_TASK(task, member) ({						\
	struct task_struct *task_ = (task);					\
	config.current_btf ? task_->member : BPF_CORE_READ(task_, member);	\
})

/*
 * bpf_task_pt_regs: since 5.15 (dd6e10fbd9fb); before, the registers are read at the top of the kernel stack (without
 * padding on those kernels, on x86_64 and arm64).
 */
static __always_inline struct pt_regs *saved_regs(struct task_struct *task)
{
	if (config.pt_regs_helper)
		return (struct pt_regs *)bpf_task_pt_regs(task);
	return (struct pt_regs *)((char *)BPF_CORE_READ(task, stack) + config.thread_size
				  - bpf_core_type_size(struct pt_regs));
}

/* The state in which a thread leaves its CPU: an argument of sched_switch since 5.18; before, its present state. */
static __always_inline unsigned int left_in_state(__u64 *ctx)
{
	if (config.switch_has_state)
		return (unsigned int)ctx[3];
	return task_state((struct task_struct *)ctx[1]);
}

/* The CPU of a task that may not be the current one. */
static __always_inline __u32 cpu_of(struct task_struct *task)
{
	struct task_struct___before_5_16 *old = (void *)task;

	if (bpf_core_field_exists(task->thread_info.cpu))
		return task->thread_info.cpu;
	return bpf_core_field_exists(old->cpu) ? BPF_CORE_READ(old, cpu) : 0;
}

/* Holds x86's preemption count from 6.2 to 6.14. */
struct pcpu_hot { int preempt_count; } CORE;

static __always_inline struct gendisk *request_disk(struct request *rq)
{
	struct request___before_5_17 *old = (void *)rq;

	if (bpf_core_field_exists(old->rq_disk))
		return BPF_CORE_READ(old, rq_disk);
	return BPF_CORE_READ(rq, q, disk);
}

/* The request of block_rq_insert and block_rq_issue: before 5.11 the queue is the first argument. */
static __always_inline struct request *block_argument(__u64 *ctx)
{
	if (config.block_one_arg)
		return (struct request *)ctx[0];
	return (struct request *)ctx[1];
}

/* Reads the first index and number of pages of a folio (before 5.16: a page). Returns its mapping. */
static __always_inline struct address_space *folio_place(void *object, __u64 *first, __u64 *number)
{
	const unsigned long head = 1UL << bpf_core_enum_value(enum pageflags, PG_head);
	struct address_space *mapping;
	unsigned long flags = 0;
	__u32 order = 0;

	bpf_probe_read_kernel(&flags, sizeof(flags), object);
	if (bpf_core_type_exists(struct folio)) {
		struct folio___before_6_6 *old = object;
		struct folio *folio = object;

		mapping = BPF_CORE_READ(folio, mapping);
		*first = BPF_CORE_READ(folio, index);
		if (flags & head && bpf_core_field_exists(old->_folio_order))
			order = BPF_CORE_READ(old, _folio_order);
		else if (flags & head && !bpf_core_field_exists(((struct page___before_6_2 *)0)->compound_order))
			order = BPF_CORE_READ(folio, _flags_1) & 0xff;
	} else {
		struct page *page = object;

		mapping = BPF_CORE_READ(page, mapping);
		*first = BPF_CORE_READ(page, index);
	}
	if (flags & head && bpf_core_field_exists(((struct page___before_6_2 *)0)->compound_order)) {
		struct page___before_6_2 *second = object + bpf_core_type_size(struct page);

		order = BPF_CORE_READ(second, compound_order);
	}
	*number = 1UL << (order & 31);
	return mapping;
}

/*
 * The file that holds the content of an open file of overlayfs: its private data, or since 6.14 the first member of the
 * structure there. Types do not show which, so callers try both.
 */
static __always_inline struct file *overlay_first(struct file *real)
{
	struct file *first = 0;

	bpf_probe_read_kernel(&first, sizeof(first), real);
	return first;
}

/*
 * Plain loads instead of a helper call each: since 6.2 (a35b9af4ec2c). Kernels from 5.13 to 5.15 refuse an object that
 * refers to a kernel function they do not have (fixed in 5.16, a5d827275241): host_old is built without.
 */
#ifndef NO_KERNEL_FUNCTIONS
void *bpf_rdonly_cast(void *object, __u32 type) __ksym;
#endif

/*
 * Calls step(i, context) for i < times until it returns 1. bpf_loop (5.17, e6f2dd0f8067) is verified once, a plain loop
 * once per turn, which triples the load time. Kernels before 5.13 refuse even an unused reference to a callback, so the
 * build for old kernels has none.
 */
#ifdef NO_KERNEL_FUNCTIONS
#define REPEAT(times, bound, step, context) do {				\
	for (__u32 turn_ = 0; turn_ < (bound); turn_++)				\
		if (turn_ >= (times) || step(turn_, context))			\
			break;							\
} while (0)
#else
#define REPEAT(times, bound, step, context) do {				\
	if (config.loop_helper) {						\
		bpf_loop(times, step, context, 0);				\
	} else {								\
		for (__u32 turn_ = 0; turn_ < (bound); turn_++)			\
			if (turn_ >= (times) || step(turn_, context))		\
				break;						\
	}									\
} while (0)
#endif

/*
 * Most chunks of pages per call: enough for the longest read, 2 GiB. Old verifiers verify every turn of a loop: for them
 * only the first 126 MiB of a call are followed.
 */
#ifdef NO_KERNEL_FUNCTIONS
#define TOUCH_CHUNKS 64
#else
#define TOUCH_CHUNKS 1025
#endif

/*
 * Set or clear bits of a word that other CPUs change, too. Atomic operations other than adding: since 5.12
 * (981f94c3e921; on arm64 5.18). With `plain`, without them, concurrent changes may be lost.
 */
static __always_inline __u64 set_bits(__u64 *word, __u64 mask, bool plain)
{
	__u64 before;

	if (!plain)
		return __sync_fetch_and_or(word, mask);
	before = *word;
	*word = before | mask;
	return before;
}

static __always_inline __u64 clear_bits(__u64 *word, __u64 mask, bool plain)
{
	__u64 before;

	if (!plain)
		return __sync_fetch_and_and(word, ~mask);
	before = *word;
	*word = before & ~mask;
	return before;
}

/* The error number returned by a helper: an int until 6.4, so the upper 32 bits are undefined. */
typedef __s32 helper_error;

#endif
