/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Optional hooks of threads: start and end, faults on mapped files. */
#ifndef WHYSTALL_TASKS_H
#define WHYSTALL_TASKS_H

#include "page_state.bpf.h"
#include "walk.bpf.h"

/* (parent, child) */
SEC("tp_btf/sched_process_fork")
int on_fork(__u64 *ctx)
{
	struct task_struct *parent = (struct task_struct *)ctx[0], *child = (struct task_struct *)ctx[1];

	follow_child(parent, child);
	if (config.python && parent->tgid != child->tgid && is_traced(child->tgid))
		python_child(parent->tgid, child->tgid);
	return 0;
}

/* Only with the hash maps: task-local storage is freed with its task. */
SEC("tp_btf/sched_process_exit")
int on_thread_exit(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	__u32 tid = task->pid;

	if (!config.task_storage) {
		bpf_map_delete_elem(&state_hash, &tid);
		bpf_map_delete_elem(&page_hash, &tid);
	}
	return 0;
}

/* (mapping, index): a mapped file's page is not cached; the thread's next blocking wait is for it. */
SEC("tp_btf/mm_filemap_fault")
int on_fault(__u64 *ctx)
{
	struct address_space *mapping = (struct address_space *)ctx[0];
	__u64 id = bpf_get_current_pid_tgid();
	struct thread_state *state;
	struct inode *inode;

	if (!window_open())
		return 0;
	if (!level_of(id >> 32) || !has_timeline(id >> 32))
		return 0;
	inode = BPF_CORE_READ(mapping, host);
	if (!inode)
		return 0;
	state = named_state(bpf_get_current_task_btf(), id >> 32, id);
	if (!state)
		return 0;
	inode_key(inode, &state->fault_file);
	state->fault_time = bpf_ktime_get_ns();
	state->fault_dentry = (__u64)any_dentry(inode);
	return 0;
}

#endif
