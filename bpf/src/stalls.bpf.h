/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Stalls of threads: direct reclaim, pauses for dirty pages, waits for the lock of a file's inode. */
#ifndef WHYSTALL_STALLS_H
#define WHYSTALL_STALLS_H

#include "pagecache.bpf.h"

HASH_MAP(stall_totals, struct stall_key, struct stall_total, 8192);

/* Adds a stall of a thread; its total has no other writer. */
static __always_inline void add_stall(struct task_struct *task, __u32 what, struct file_key *file, __u64 start,
				      __u64 ns, __u64 pages, bool open)
{
	struct stall_key key = { .file = *file, .what = what };
	struct stall_total *total;

	key.tgid = OF_TASK(task, tgid);
	key.tid = OF_TASK(task, pid);
	total = stall_totals_make(&key, LOST_STALLS_FULL);
	if (!total)
		return;
	if (!total->count)
		name_thread(task, key.tgid, key.tid);
	add_to_stall(total, start, ns, pages);
	if (open)
		total->in_flight = 1;
}

static const struct file_key no_file = {};

static __always_inline bool by_self(void)
{
	return is_self(bpf_get_current_pid_tgid() >> 32);
}

static __always_inline int reclaim_begins(__u32 what)
{
	struct task_struct *task = current_task();
	struct page_state *state;

	if (by_self() || OF_TASK(task, flags) & PF_KTHREAD)
		return 0;
	state = make_page_state(task, bpf_get_current_pid_tgid());
	if (!state)
		return 0;
	state->reclaim_start = bpf_ktime_get_ns();
	state->reclaim_what = what;
	return 0;
}

static __always_inline int reclaim_ends(__u32 what, __u64 pages)
{
	struct task_struct *task = current_task();
	struct file_key none = no_file;
	struct page_state *state;
	__u64 start, now;

	if (by_self() || OF_TASK(task, flags) & PF_KTHREAD)
		return 0;
	state = make_page_state(task, bpf_get_current_pid_tgid());
	if (!state)
		return 0;
	now = bpf_ktime_get_ns();
	start = state->reclaim_start ? state->reclaim_start : live.window_start;	/* 0: it began before */
	state->reclaim_start = 0;
	add_stall(task, what, &none, start, now > start ? now - start : 0, pages, false);
	return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int on_direct_begin(__u64 *ctx)
{
	if (!window_open())
		return 0;
	return reclaim_begins(STALL_DIRECT_RECLAIM);
}

/* (pages reclaimed) */
SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int on_direct_end(__u64 *ctx)
{
	if (!window_open())
		return 0;
	return reclaim_ends(STALL_DIRECT_RECLAIM, ctx[0]);
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int on_cgroup_begin(__u64 *ctx)
{
	if (!window_open())
		return 0;
	return reclaim_begins(STALL_CGROUP_RECLAIM);
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int on_cgroup_end(__u64 *ctx)
{
	if (!window_open())
		return 0;
	return reclaim_ends(STALL_CGROUP_RECLAIM, ctx[0]);
}

/* (node, us to wait at most, us waited, reason), after the wait */
SEC("tp_btf/mm_vmscan_throttled")
int on_throttled(__u64 *ctx)
{
	struct task_struct *task = current_task();
	__u64 ns = (__u64)(__u32)ctx[2] * 1000;
	struct file_key none = no_file;

	if (!window_open())
		return 0;
	if (by_self() || OF_TASK(task, flags) & PF_KTHREAD || !ns)
		return 0;
	add_stall(task, STALL_THROTTLED_RECLAIM, &none, bpf_ktime_get_ns() - ns, ns, 0, false);
	return 0;
}

/* Sets `key` to the file of the thread's system call, if any, and emits its path. */
static __always_inline void called_file(struct task_struct *task, struct file_key *key)
{
	const volatile struct syscall_row *row;
	struct found_file found = {};
	struct pt_regs *regs;
	struct inode *inode;
	struct file *file;

	if (OF_TASK(task, flags) & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER) || task_is_compat(task))
		return;
	regs = saved_regs(task);
	row = row_of(regs_syscall(regs));
	if (!row || row->fd == NO_ARG || !find_task_file(task, fd_arg(regs, row->fd), &found))
		return;
	file = found.file;
	inode = content_of(file);
	if (inode && page_key(inode, key) && key->ino)
		name_page_file((__u64)inode);
}

/* A writer is about to pause for `pause` ticks; 0 or less: no pause. */
static __always_inline int throttle(__u64 dirtied, __s64 pause)
{
	struct task_struct *task = current_task();
	struct file_key file = no_file;
	struct page_state *state;
	__u64 ns, now;

	if (pause <= 0 || by_self() || OF_TASK(task, flags) & PF_KTHREAD)
		return 0;
	ns = pause * config.tick_ns;
	now = bpf_ktime_get_ns();
	called_file(task, &file);
	add_stall(task, STALL_DIRTY_THROTTLE, &file, now, ns, dirtied, false);
	state = make_page_state(task, bpf_get_current_pid_tgid());
	if (state) {
		state->pause_end = now + ns;
		state->pause_file = file;
	}
	return 0;
}

/* (wb, dtc, two rates, pages dirtied, period, pause, start): on newer kernels */
SEC("tp_btf/balance_dirty_pages")
int on_throttle(__u64 *ctx)
{
	if (!window_open())
		return 0;
	return throttle(ctx[4], ctx[6]);
}

/* (wb, five numbers, two rates, pages dirtied, period, pause, start) */
SEC("tp_btf/balance_dirty_pages")
int on_throttle_old(__u64 *ctx)
{
	if (!window_open())
		return 0;
	return throttle(ctx[8], ctx[10]);
}

#define LCB_F_READ 2
#define LCB_F_WRITE 4

/* (lock, kind): a thread is about to sleep for a lock, after spinning. */
SEC("tp_btf/contention_begin")
int on_lock_wait(__u64 *ctx)
{
	const volatile struct syscall_row *row;
	struct found_file found = {};
	__u32 flags = ctx[1];
	struct page_state *state;
	struct task_struct *task;
	struct pt_regs *regs;
	struct inode *inode;
	struct file *file;

	if (!window_open())
		return 0;
	if (flags != LCB_F_READ && flags != LCB_F_WRITE)	/* not a read-write semaphore */
		return 0;
	task = current_task();
	if (by_self() || OF_TASK(task, flags) & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER) || task_is_compat(task))
		return 0;
	regs = saved_regs(task);
	row = row_of(regs_syscall(regs));
	if (!row || row->fd == NO_ARG || !find_task_file(task, fd_arg(regs, row->fd), &found))
		return 0;
	file = found.file;
	inode = content_of(file);
	if (!inode || (ctx[0] != (__u64)inode + bpf_core_field_offset(struct inode, i_rwsem)
		       && ctx[0] != (__u64)BPF_CORE_READ(file, f_inode) + bpf_core_field_offset(struct inode, i_rwsem)))
		return 0;
	state = make_page_state(task, bpf_get_current_pid_tgid());
	if (!state)
		return 0;
	if (!page_key(inode, &state->lock_file))
		return 0;
	if (state->lock_file.ino)
		name_page_file((__u64)inode);
	state->lock = ctx[0];
	state->lock_start = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/contention_end")
int on_lock_got(__u64 *ctx)
{
	struct task_struct *task = current_task();
	struct page_state *state = page_state_of(task, bpf_get_current_pid_tgid());
	struct file_key file;

	if (!window_open())
		return 0;
	if (!state || !state->lock_start || state->lock != ctx[0])
		return 0;
	file = state->lock_file;
	add_stall(task, STALL_FILE_LOCK, &file, state->lock_start, bpf_ktime_get_ns() - state->lock_start, 0, false);
	state->lock_start = 0;
	return 0;
}

/* Adds stalls in progress at the end of the window, when no hook counts any more. */
SEC("iter/task")
int walk_stalls(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct stall_total *total;
	struct page_state *state;
	struct stall_key key = {};
	struct file_key file;
	__u64 end = live.window_end;

	if (!task)
		return 0;
	state = page_state_of(task, task->pid);
	if (!state)
		return 0;
	file = no_file;
	if (state->reclaim_start && state->reclaim_start < end)
		add_stall(task, state->reclaim_what, &file, state->reclaim_start, end - state->reclaim_start, 0, true);
	if (state->lock_start && state->lock_start < end) {
		file = state->lock_file;
		add_stall(task, STALL_FILE_LOCK, &file, state->lock_start, end - state->lock_start, 0, true);
	}
	if (state->pause_end > end) {	/* it was counted in full when it began */
		key.file = state->pause_file;
		key.tgid = task->tgid;
		key.tid = task->pid;
		key.what = STALL_DIRTY_THROTTLE;
		total = bpf_map_lookup_elem(&stall_totals, &key);
		if (total && total->total_ns > state->pause_end - end) {
			total->total_ns -= state->pause_end - end;
			total->in_flight = 1;
		}
	}
	return 0;
}

#endif
