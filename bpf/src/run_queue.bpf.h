/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Waits for a CPU: from the wake-up, or from a switch away while still runnable, to the switch in. Counted if the waiting
 * thread is observed, whichever thread wakes it. Separate from the hooks of switches.bpf.h, which cost much more.
 */
#ifndef WHYSTALL_RUN_QUEUE_BPF_H
#define WHYSTALL_RUN_QUEUE_BPF_H

#include "host.bpf.h"
#include "regs.bpf.h"
#include "run_queue.h"

HASH_MAP(queue_waiting, __u32, struct queue_since, 16384);

static __always_inline bool queue_watched(__u32 tgid)
{
	return is_traced(tgid) || is_self(tgid);	/* our own waits verify that the hooks work */
}

static __always_inline void begin_wait(struct task_struct *task, __u64 now)
{
	struct queue_since since = {
		.since = now,
		.runs = task->sched_info.pcount,
		.delay = task->sched_info.run_delay,
	};
	__u32 tid = task->pid;

	if (bpf_map_update_elem(&queue_waiting, &tid, &since, BPF_ANY))
		count(LOST_WAITS_FULL);
}

/* Returns the wait that ends now, ns, by the scheduler's accounting (sched_info.last_queued). */
static __always_inline __u64 present_wait(struct task_struct *task)
{
	__u64 queued, clock;

	if (!bpf_core_field_exists(task->se.cfs_rq))	/* no CONFIG_FAIR_GROUP_SCHED */
		return 0;
	queued = task->sched_info.last_queued;
	clock = task->se.cfs_rq->rq->clock;
	return queued && clock > queued ? clock - queued : 0;
}

/*
 * Adds the wait that ends now; `waiting`: at a switch in, else at a switch away, when a switch in was not reported, as on
 * some kernels. If the thread ran in between by the scheduler's accounting (sched_info), several waits ended: their sum
 * is its run_delay, and each counts as their mean. A thread switched away that got no CPU since had one all the time.
 */
static __always_inline void end_wait(struct task_struct *task, struct queue_since *since, __u64 now, bool waiting)
{
	__u64 runs = task->sched_info.pcount - since->runs, delay = task->sched_info.run_delay - since->delay;

	if (!runs) {
		if (waiting && now > since->since)
			add_waits(task, task->tgid, task->pid, 1, now - since->since);
	} else if (waiting) {
		add_waits(task, task->tgid, task->pid, runs + 1, delay + present_wait(task));
	} else {
		add_waits(task, task->tgid, task->pid, runs, delay);
	}
}

/* A thread woken before it left its CPU does not wait. */
static __always_inline int woken(struct task_struct *task)
{
	if (queue_watched(task->tgid) && !task->on_cpu)
		begin_wait(task, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_wakeup")
int on_wakeup(__u64 *ctx)
{
	if (!window_open())
		return 0;
	return woken((struct task_struct *)ctx[0]);
}

SEC("tp_btf/sched_wakeup_new")
int on_wakeup_new(__u64 *ctx)
{
	if (!window_open())
		return 0;
	return woken((struct task_struct *)ctx[0]);
}

/* (bool preempt, prev, next), and see left_in_state */
SEC("tp_btf/sched_switch")
int on_queue_switch(__u64 *ctx)
{
	struct task_struct *prev = (struct task_struct *)ctx[1];
	struct task_struct *next = (struct task_struct *)ctx[2];
	__u64 now = bpf_ktime_get_ns();
	struct queue_since *since;
	unsigned int run_state;
	__u32 tid;

	if (!window_open())
		return 0;
	if (queue_watched(prev->tgid)) {
		tid = prev->pid;
		since = bpf_map_lookup_elem(&queue_waiting, &tid);
		if (since) {
			end_wait(prev, since, now, false);
			bpf_map_delete_elem(&queue_waiting, &tid);
		}
		run_state = left_in_state(ctx);
		if (ctx[0] & 1 || !run_state)
			begin_wait(prev, now);
	}
	if (queue_watched(next->tgid)) {
		tid = next->pid;
		since = bpf_map_lookup_elem(&queue_waiting, &tid);
		if (since) {
			end_wait(next, since, now, true);
			bpf_map_delete_elem(&queue_waiting, &tid);
		}
	}
	return 0;
}

/* Runs twice: waits at the start begin with the window; waits at the end are recorded. */
SEC("iter/task")
int walk_queue(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct queue_since *since;
	unsigned long runs;
	__u32 tid;

	if (!task || !queue_watched(task->tgid))
		return 0;
	tid = task->pid;
	since = bpf_map_lookup_elem(&queue_waiting, &tid);
	if (!live.walk_stage) {
		runs = task->sched_info.pcount;
		if (since || task_state(task) || task->exit_state || task->on_cpu)
			return 0;
		begin_wait(task, live.window_start);
		if (task->on_cpu || task->sched_info.pcount != runs)	/* it got a CPU meanwhile */
			bpf_map_delete_elem(&queue_waiting, &tid);
		return 0;
	}
	if (since)
		end_wait(task, since, live.window_end, task->sched_info.pcount == since->runs);
	return 0;
}

#endif
