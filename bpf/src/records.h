/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Every layout shared with user space: bpf/build.py generates bpf/layout_generated.py from the structs and enums
 * of this file, python_records.h, trace_records.h and function_records.h.
 * No implicit padding anywhere. Times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef WHYSTALL_RECORDS_H
#define WHYSTALL_RECORDS_H

enum record_limit {
	SYSCALL_ROWS = 512,
	STACK_DEPTH = 96,
	PATH_BYTES = 4096,
	COMM_BYTES = 16,
	NO_ARG = 0xff,
	NO_SYSCALL = -1,
	PROCESS_SLOTS = 2048,	/* a power of two */
	DETAIL_LEVELS = 8,	/* a power of two */
	FD_UNREAD = -2,		/* of several descriptors, or some that could not be read */
};

#include "python_records.h"

/* Properties of a system call number; filled by user space before the load. */
enum row_flag {
	ROW_FILE_OP = 1 << 0,	/* a file operation, observed even without targets */
	ROW_METADATA = 1 << 1,	/* works on names or attributes, not on content */
	ROW_BYTES = 1 << 2,	/* returns a number of bytes */
	ROW_POSITION = 1 << 3,	/* uses the file's own position */
	ROW_RETURNS_FD = 1 << 4,
	ROW_VECTOR = 1 << 5,	/* the size argument counts iovecs, the one before points to them */
	ROW_CLOSES = 1 << 6,	/* the fd is gone when the call returns */
	ROW_FUTEX = 1 << 7,
	ROW_READS = 1 << 8,	/* reads from `fd` */
	ROW_WRITES = 1 << 9,	/* writes to `fd` */
	ROW_POLL = 1 << 10,	/* the arguments are an array of struct pollfd and its length */
	ROW_FUTEX_LIST = 1 << 11,	/* the first argument is an array of struct futex_waitv */
	ROW_SENDS = 1 << 12,	/* may send packets to a socket of this host */
	ROW_FILE_LOCK = 1 << 13,	/* takes locks of files: EAGAIN means that another has it */
	ROW_SELECT = 1 << 14,	/* the arguments are a number and three sets of as many descriptors */
	ROW_STARTS = 1 << 15,	/* starts a process or a thread: EAGAIN means that there may be no more */
};

/* How the argument `time` of a call states how long to wait at most. */
enum wait_time {
	TIME_NONE,
	TIME_MS,	/* a number of milliseconds */
	TIME_SPEC,	/* struct timespec, relative */
	TIME_VAL,	/* struct timeval, relative */
	TIME_SLEEP,	/* struct timespec after clock and flags */
	TIME_FUTEX,	/* struct timespec by the operation in the second argument */
	TIME_ABSOLUTE,	/* struct timespec, absolute; the clock is the next argument */
};

struct syscall_row {
	__u16 flags;
	__u8 fd, fd2;		/* argument numbers 0..5, or NO_ARG */
	__u8 path, dir;
	__u8 path2, dir2;
	__u8 size, offset;
	__u8 time, time_kind;	/* enum wait_time */
};

struct config {
	__u64 call_min_ns;
	__u64 switch_min_ns;
	__u64 block_min_ns;
	__u64 wakeup_bytes;	/* wake the reader when the ring holds this much */
	__u64 tick_ns;		/* the kernel's clock tick, the unit of its pauses */
	__s64 preempt_distance;	/* from a CPU's run queue to its preemption count; 0: unknown */
	__s64 realtime_offset;	/* CLOCK_REALTIME less CLOCK_MONOTONIC */
	__u64 errors_low;	/* bit n: calls that fail with error n are counted; errors 0 to 63 */
	__u64 errors_high;	/* errors 64 to 127 */
	__u32 target;		/* the first target tgid; 0: all */
	__u32 self_tgid;	/* the tracer: counted separately, never reported */
	__u32 thread_size;	/* bytes of a kernel stack, for the register fallback */
	__u32 page_shift;	/* log2 of the bytes of a page */
	__u32 chunks_of_others;	/* with targets: most chunks of pages for other processes */
	__u32 anonymous_dev;	/* the file system of eventfd, epoll ...; 0: unknown */
	__u8 follow;
	__u8 syscalls;
	__u8 switches;
	__u8 user_stacks;
	__u8 wakers;
	__u8 task_storage;	/* variants: 1: as on newer kernels */
	__u8 pt_regs_helper;
	__u8 switch_has_state;
	__u8 block_one_arg;
	__u8 current_btf;
	__u8 loop_helper;
	__u8 all_cpus;
	__u8 samples;
	__u8 python;		/* also walk the interpreter's frames */
	__u8 pages_reported;	/* variant: the kernel reports the pages of a read */
	__u8 maps_folios;	/* variant: a fault maps all of a large folio, whatever range it reports */
	__u8 follow_wakers;	/* also record processes that wake threads of traced ones */
	__u8 wake_contexts;	/* variant: all hooks that determine the context of a wake-up are attached */
	__u8 accelerator;	/* functions of accelerators' libraries are probed: stacks have the one a thread is in */
	__u8 limited;		/* processes have levels of detail: `live.levels` */
	__u8 pad[4];
};

/* A level of detail of a recording without an end; 0: as configured, always. */
struct detail {
	__u64 switch_min_ns;	/* a higher threshold */
	__u64 wake_min_ns;	/* do not record who ends a wait that was shorter */
	__u64 wake_min_ticks;	/* the same in ticks of the kernel, rounded down; 0: not used */
	__u64 reuse_ns;		/* reuse stacks by the registers alone for this long, see stack_reuse.bpf.h */
};

/* The time of hooks that ran for one process, and their number, while `live.measuring`. */
struct process_cost {
	__u64 ns, runs;
};

/* Written while the programs run. */
struct live {
	__u64 window_start;
	__u64 window_end;	/* 0 while counting */
	__u64 more_targets;	/* targets beyond config.target, in the map `targets` */
	__u64 walk_stage;	/* enum walk_stage */
	__u64 walk_followed;	/* seed only threads of processes that are newly followed */
	__s64 clock_offset;	/* CLOCK_MONOTONIC less the scheduler's clock; 0: not known */
	__u64 clock_read;	/* when that was measured */
	__u64 other_chunks;	/* chunks of pages that others than targets took */
	__u64 followed_users, followed_kernel;	/* processes and kernel threads followed as wakers */
	/* of a recording without an end, to limit its cost */
	__u64 follow_min_ns;	/* follow wakers only if the wait that they ended was at least as long */
	__u64 sample_one_in;	/* handle one of so many ticks, chosen at random; 0: all */
	__u64 looking;		/* some process is looked at once per second: ticks read the scheduler's clock */
	__u64 look_min_ns;	/* the shortest wait that is recorded of such processes */
	__u64 measuring;	/* measure the hooks' time by process */
	struct detail details[DETAIL_LEVELS];
	__u8 levels[PROCESS_SLOTS];	/* see level_of */
};

enum walk_stage {
	WALK_SEED,	/* begin the waits and calls that are in progress */
	WALK_FINISH,	/* record them when the window has ended */
	WALK_REPORT,	/* record the waits in progress, which go on */
	WALK_LOOK,	/* without hooks at switches: find long waits, see walk.bpf.h */
};

/* Why a process is traced: the value in the map `targets`. */
enum traced_as {
	TRACED_TARGET = 1,
	TRACED_WAKER,		/* it woke a traced thread: only its switches and samples are recorded */
	TRACED_WAKER_WALKED,	/* the same; its threads that were off the CPU have been found */
};

enum follow_limit { MOST_FOLLOWED_USERS = 64, MOST_FOLLOWED_KERNEL = 64 };

/* What a wake-up ran in. */
enum wake_context {
	WAKE_UNKNOWN,
	WAKE_TASK,
	WAKE_TIMER,
	WAKE_BLOCK,
	WAKE_NETWORK,
	WAKE_SIGNAL,
	WAKE_INTERRUPT,
	WAKE_CONTEXT_COUNT,
};

/* Per CPU; summed by user space. */
enum counter {
	LOST_RING_CALL,			/* a record did not fit the ring buffer: of a call, or a path that it names */
	LOST_RING_SEGMENT,
	LOST_RING_BLOCK,
	LOST_RING_SAMPLE,
	LOST_RING_STACK,
	LOST_RING_FILE,
	LOST_RING_CODE,
	LOST_CALL_TOTALS_FULL,		/* map call_totals was full */
	LOST_FILE_SLOTS_FULL,		/* map file_slots was full */
	LOST_OFF_TOTALS_FULL,		/* map off_totals was full */
	LOST_FILES_FULL,		/* map files_seen was full: a path is missing */
	LOST_THREADS_FULL,		/* map threads was full: a comm is missing */
	LOST_NO_STATE,			/* no per-thread state: the event was not measured */
	LOST_REQUESTS_FULL,		/* map requests was full */
	LOST_BLOCK_MAPS_FULL,		/* map block_slots or block_totals was full */
	LOST_TARGETS_FULL,		/* map targets was full: a child was not followed */
	LOST_STACK_WALK_FAILED,		/* the kernel could not give a stack */
	LOST_PAGE_USES_FULL,		/* map page_uses was full: users of pages are unknown */
	LOST_PAGE_FILES_FULL,		/* map page_files was full: files of evicted pages are unknown */
	LOST_STALLS_FULL,		/* map stall_totals was full */
	LOST_SIZES_FULL,		/* a map of sizes was full */
	LOST_INTERRUPTS_FULL,		/* a map of interrupts was full */
	LOST_WAITS_FULL,		/* a map of the run queue was full */
	LOST_FAILURES_FULL,		/* map call_failures was full */
	LOST_ACCELERATOR_FULL,		/* map accelerator_totals was full */
	LOST_COMPAT_SKIPPED,		/* 32-bit system calls: numbers mean something else */
	SELF_CALLS,
	SELF_SWITCHES,
	SEEN_BLOCK,
	SEEN_UNREPORTED,		/* a switch back to a traced thread that the kernel did not report */
	SEEN_TICKS,			/* every sample of every CPU */
	SEEN_IDLE_TICKS,		/* of these: on an idle CPU */
	SEEN_SELF_TICKS,		/* of these: in the tracer */
	SEEN_SAMPLES,			/* of these: in a traced thread */
	SEEN_PAGES,			/* events of the page cache of all processes but the tracer */
	SELF_ADDED,		/* pages that the tracer added to the cache */
	SELF_READ,			/* recorded reads of the tracer */
	SELF_WAITS,		/* waits of the tracer for a CPU */
	SEEN_NOT_FOLLOWED,		/* wake-ups by processes beyond the limit of followed ones */
	PYTHON_WALKS,			/* Python stacks that were read */
	PYTHON_SKIPPED,			/* switches at which none was read, to limit the cost */
	STACKS_REUSED,			/* waits with the stacks of an earlier one at the same place */
	PYTHON_BROKEN,			/* walks that ended at unreadable or invalid memory */
	PYTHON_NS,			/* their cost, nanoseconds */
	SEEN_RECORDS,			/* records put into the ring buffer */
	ACCELERATOR_HITS,		/* entries and returns of probed functions, also of other processes */
	COUNTER_COUNT,
};

struct counters {
	__u64 count[COUNTER_COUNT];
};

struct file_key {
	__u64 ino;
	__u32 dev;		/* the kernel's own dev_t: major << 20 | minor */
	__u32 gen;
};

enum off_class {
	OFF_D,			/* uninterruptible */
	OFF_S,			/* interruptible, idle */
	OFF_R,			/* preempted or yielded: runnable, without a CPU */
	OFF_OTHER,		/* stopped, traced, parked, frozen */
	OFF_CLASS_COUNT,
};

enum record_flag {
	RECORD_SEEDED = 1 << 0,	/* began before the window; start is the window's */
	RECORD_OPEN = 1 << 1,	/* in progress when the window ended; end is the window's */
	RECORD_DIRECT = 1 << 2,	/* O_DIRECT */
	RECORD_SYNC = 1 << 3,	/* O_SYNC or O_DSYNC */
	RECORD_KTHREAD = 1 << 4,
	RECORD_FAULT_FILE = 1 << 5,	/* file is the one of the thread's last major fault */
	RECORD_REGULAR = 1 << 6,	/* file is a regular file */
	RECORD_IN_CALL = 1 << 7,	/* nr was seen entering, not read from saved registers */
};

struct call_key {
	__u32 tgid, tid;
	__s32 nr;
	__u32 pad;
};

struct call_total {
	__u64 count, wall_ns, max_ns, bytes;
	__u64 d_ns, s_ns, run_ns, other_ns;	/* on CPU: wall less these */
};

struct failure_key {
	__u32 tgid, tid;
	__s32 nr;
	__u32 error;
};

struct failure_total {
	__u64 count, first, last;
};

struct slot_key {
	struct file_key file;
	__u32 tgid;
	__u16 nr, slot;
};

struct slot_value {
	__u64 count, sum_ns, bytes;
};

struct off_key {
	struct file_key file;
	__u64 kstack, ustack, pystack;
	__u32 tgid, tid;
	__s32 nr;
	__u32 off_class;
};

struct off_total {
	__u64 count, total_ns, max_ns;
	__u64 run_ns;		/* part of total_ns: awake, waiting for a CPU */
};

struct thread_info_value {
	__u32 tgid, flags;
	char comm[COMM_BYTES];
};

struct block_key {
	__u32 dev;
	__u16 op, phase;
	__u32 slot, pad;
};

enum block_op { BLOCK_READ, BLOCK_WRITE, BLOCK_SYNC_WRITE, BLOCK_FLUSH, BLOCK_DISCARD, BLOCK_OTHER };
enum block_phase { PHASE_QUEUE, PHASE_DEVICE };

/* An I/O in progress; those left in the map at the end are open. */
struct request_state {
	__u64 insert, issue, sector;
	__u64 allocated;	/* distinguishes a reused request from the queued one */
	__u32 dev, bytes, op;
	__u32 tgid, tid, pad;
	char comm[COMM_BYTES];
};

struct block_slot {
	__u64 count, sum_ns;
};

struct block_total {
	__u64 count, bytes, queue_ns, device_ns, queue_max_ns, device_max_ns;
};

/*
 * Pages of a file are tracked in chunks, a bit per page: `touched` and `evicted` (by reclaim) in this window; `added` in
 * this window and still cached, and of these the ones used `once` or `more` often since.
 */
enum chunk_size { CHUNK_SHIFT = 9, CHUNK_WORDS = 8 };

struct chunk_key {
	struct file_key file;
	__u64 chunk;
};

struct page_chunk {
	__u64 touched[CHUNK_WORDS], added[CHUNK_WORDS], once[CHUNK_WORDS], more[CHUNK_WORDS], evicted[CHUNK_WORDS];
};

struct use_key {
	struct file_key file;
	__u32 tgid, pad;
};

/* Base pages (2^n of a folio of order n), and bytes of calls; direct_bytes are part of the other two. */
struct page_use {
	__u64 accessed, mapped, again;
	__u64 added, refaulted, dirtied;
	__u64 tracked, untracked;	/* of the added ones */
	__u64 direct_bytes, read_bytes, write_bytes;
	char comm[COMM_BYTES];
};

struct page_file {
	__u64 reclaimed, dropped, judged, one_pass;
	__u64 written_back;
	__u64 flags;
};

enum page_file_flag {
	PAGE_FILE_NO_DISK = 1 << 0,	/* the file system is not on a single disk: written_back is unknown */
};

enum stall {
	STALL_DIRECT_RECLAIM,
	STALL_CGROUP_RECLAIM,
	STALL_THROTTLED_RECLAIM,	/* within one of the two above */
	STALL_DIRTY_THROTTLE,
	STALL_FILE_LOCK,
	STALL_COUNT,
};

struct stall_key {
	struct file_key file;
	__u32 tgid, tid;
	__u32 what, pad;
};

struct stall_total {
	__u64 count, total_ns, max_ns, longest_at, pages;
	__u64 in_flight;
};

/* log: bytes of a call are 2^log or more, and less than twice that */
struct size_key {
	struct file_key file;
	__u32 tgid;
	__u8 write, direct, log, pad;
};

struct size_total {
	__u64 count, bytes;
};

/* A handler: `id` is the number of a softirq, or the address of an interrupt's action (two may share one interrupt). */
enum irq_kind { IRQ_HARDIRQ, IRQ_SOFTIRQ, IRQ_KIND_COUNT };

enum irq_size { IRQ_NAME_BYTES = 64 };

struct irq_key {
	__u64 id;
	__u32 kind, cpu;
};

struct irq_total {
	__u64 count, total_ns, max_ns;
};

struct irq_slot_key {
	__u64 id;
	__u32 kind, slot;
};

struct irq_name {
	char text[IRQ_NAME_BYTES];
};

/* Time that a handler took from a target's thread, without interrupts nested in a softirq. */
struct stolen_key {
	__u64 id;
	__u32 kind, tid;
};

struct stolen_total {
	__u64 count, total_ns, max_ns;
	__u64 in_call_ns;	/* part of it within a system call of the thread: possibly its own work */
	__u32 tgid, pad;
	char comm[COMM_BYTES];
};

/* A thread that waits for a CPU: since when, and its sched_info.pcount and run_delay then. */
struct queue_since {
	__u64 since, runs, delay;
};

struct queue_key {
	__u32 tgid, tid;
};

struct queue_total {
	__u64 count, total_ns, max_ns;
	char comm[COMM_BYTES];
};

struct queue_slot_key {
	__u32 tgid, slot;
};

/* Calls of a function of an accelerator's library from one Python stack, which includes the function. */
struct accelerator_key {
	__u64 pystack;
	__u32 tgid, tid;
	__u32 function, pad;
};

struct accelerator_total {
	__u64 count, total_ns, max_ns;
};

/* Ring buffer records: the first member is the type. */
enum record_type {
	RECORD_CALL = 1,
	RECORD_PATH,
	RECORD_FILE,
	RECORD_SEGMENT,
	RECORD_BLOCK,
	RECORD_STACK,
	RECORD_SAMPLE,
	RECORD_CODE,
	RECORD_FOLLOWED,
};

/* Python stacks hold words of python_records.h instead of addresses. */
enum stack_kind { STACK_KERNEL, STACK_USER, STACK_PYTHON };

/* Emitted at its first use, before any record with its id; as long as its depth. Innermost first. */
struct stack_record {
	__u32 type;
	__u16 depth, kind;
	__u64 id;
	__u64 ip[STACK_DEPTH];
};

/* COLLECTS: the thread runs the garbage collector of its Python interpreter. */
enum sample_flag { SAMPLE_COLLECTS = 1 };

/* The thread on a CPU at an instant. kstack 0: user mode (or lost); ustack 0: a kernel thread (or lost). */
struct sample_record {
	__u32 type, flags;	/* flags: SAMPLE_COLLECTS */
	__u64 at;
	__u64 kstack, ustack, pystack;
	__u32 tgid, tid;
};

struct call_record {
	__u32 type, flags;
	__u64 start, end;
	__u32 tgid, tid;
	__s32 nr, fd;
	struct file_key file, file2, dir, dir2;
	__u64 asked;
	__s64 returned, offset;	/* offset -1: none */
	__u64 d_ns, s_ns, run_ns, other_ns;
	__u64 stack;		/* of the longest off-CPU segment; 0: none */
	__u64 longest_ns;
	__u64 path_address;	/* in the caller's memory, for a call still open */
	__u64 path2_address;
	char comm[COMM_BYTES];
};

/* A path as the caller wrote it; belongs to the call (tid, start). */
struct path_record {
	__u32 type, which;
	__u64 start;
	__u32 tid, length;
	char text[PATH_BYTES];
};

enum file_flag {
	FILE_TRUNCATED = 1 << 0,	/* the head of the path is missing */
	FILE_UNLINKED = 1 << 1,
	FILE_NO_MOUNT = 1 << 2,		/* path is within the file system only */
};

/* Names leaf first, each ended by NUL. */
struct file_record {
	__u32 type, flags;
	struct file_key file;
	__u64 size;
	__u32 mode, length;
	char fs[16];
	char text[PATH_BYTES];
};

struct segment_record {
	__u32 type, flags;
	__u64 start, end;
	__u64 run_ns;
	__u32 tgid, tid;
	__s32 nr;
	__u32 off_class;
	struct file_key file;
	__u64 futex;
	__u64 kstack, ustack, pystack;
	__u64 wake;
	__s64 asked_ns;		/* time-out of the call; -1: none, or unknown */
	__u32 waker_tgid, waker_tid;
	__s32 waker_nr, fd;	/* the waker's system call; -1: none */
	__u32 wake_context;
	__u32 ran_tgid;		/* predecessor on the CPU, if the thread waited for one; 0: none */
	char waker_comm[COMM_BYTES];
	char ran_comm[COMM_BYTES];
	char comm[COMM_BYTES];
};

/* A process whose thread woke a traced one, which is followed from now on. */
struct followed_record {
	__u32 type, tgid;
	__u64 at;
	__u32 tid, woken_tgid;
	char comm[COMM_BYTES];
};

struct block_record {
	__u32 type, dev;
	__u64 insert, issue, complete;	/* insert 0: issued directly */
	__u64 sector;
	__u32 bytes, op;
	__u32 tgid, tid;
	char comm[COMM_BYTES];
};

#endif
