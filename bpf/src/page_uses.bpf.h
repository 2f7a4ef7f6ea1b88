/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counts of cached pages used, by process and file. */
#ifndef WHYSTALL_PAGE_USES_H
#define WHYSTALL_PAGE_USES_H

#include "page_chunks.bpf.h"
#include "page_state.bpf.h"
#include "files.bpf.h"
#include "page_keys.h"

HASH_MAP(page_uses, struct use_key, struct page_use, 16384);
/* With targets: uses by other processes. When it is full, their further files are counted together. */
HASH_MAP(page_uses_others, struct use_key, struct page_use, 8192);
HASH_MAP(page_files, struct file_key, struct page_file, 65536);

/* The process that uses pages; tgid 0: a kernel thread, which works for unknown processes. */
struct actor {
	struct task_struct *task;
	__u32 tgid, tid;
	bool self, target;
};

static __always_inline void find_actor(struct actor *actor)
{
	__u64 id = bpf_get_current_pid_tgid();

	actor->task = current_task();
	actor->tgid = id >> 32;
	actor->tid = id;
	actor->self = is_self(actor->tgid);
	actor->target = is_traced(actor->tgid);
	if (OF_TASK(actor->task, flags) & PF_KTHREAD)
		actor->tgid = 0;
}

#define OVERLAYFS_MAGIC 0x794c7630

/* Returns the inode of a regular file whose own mapping has its content (not overlayfs); else 0. */
static __always_inline struct inode *plain_content(struct file *file)
{
	struct inode *inode = BPF_CORE_READ(file, f_inode);

	if (!inode || BPF_CORE_READ(file, f_mapping, host) != inode
	    || (BPF_CORE_READ(inode, i_mode) & S_IFMT) != S_IFREG)
		return 0;
	return inode;
}

/* Returns the inode whose pages hold the content of an open file; of overlayfs that of another file: see overlay_first. */
static __always_inline struct inode *content_of(struct file *file)
{
	struct inode *inode = BPF_CORE_READ(file, f_mapping, host), *found;
	struct file *real, *first;

	if (!inode || BPF_CORE_READ(inode, i_sb, s_magic) != OVERLAYFS_MAGIC)
		return inode;
	real = BPF_CORE_READ(file, private_data);
	if (!real)
		return inode;
	found = plain_content(real);
	if (found)
		return found;
	first = overlay_first(real);
	if (!first)
		return inode;
	found = plain_content(first);
	return found ? found : inode;
}

/* Returns the open file of the thread's system call if its content is `inode`'s; else 0. */
static __always_inline struct file *file_of_call(struct task_struct *task, struct inode *inode)
{
	const volatile struct syscall_row *row;
	struct found_file found = {};
	struct pt_regs *regs;
	struct file *file;

	if (OF_TASK(task, flags) & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER) || task_is_compat(task))
		return 0;
	regs = saved_regs(task);
	row = row_of(regs_syscall(regs));
	if (!row || row->fd == NO_ARG || !find_task_file(task, fd_arg(regs, row->fd), &found))
		return 0;
	file = found.file;
	if (content_of(file) != inode)
		return 0;
	return file;
}

/*
 * Emits the path of `inode` once: that of the descriptor being read, or any path within its file system. A global
 * function: verified once.
 */
__noinline int name_page_file(__u64 inode_address)
{
	struct inode *inode = (struct inode *)inode_address;
	struct task_struct *task = current_task();
	struct file *file = file_of_call(task, inode);
	struct dentry *dentry;

	if (file) {
		emit_file_as((__u64)BPF_CORE_READ(file, f_path.mnt), (__u64)BPF_CORE_READ(file, f_path.dentry),
			     SCRATCH_PAGES, inode_address);
		return 0;
	}
	dentry = any_dentry(inode);
	if (dentry)
		emit_file_as(0, (__u64)dentry, SCRATCH_PAGES, 0);
	return 0;
}

static __always_inline struct page_use *add_use(void *map, struct use_key *key, struct task_struct *task)
{
	struct page_use *use;

	bpf_map_update_elem(map, key, &page_uses_zeroes, BPF_NOEXIST);
	use = bpf_map_lookup_elem(map, key);
	if (use && key->tgid) {
		struct task_struct *leader = BPF_CORE_READ(task, group_leader);

		BPF_CORE_READ_INTO(&use->comm, leader, comm);
	}
	return use;
}

static __always_inline struct page_use *use_of(struct file_key *file, struct inode *inode, struct actor *actor)
{
	struct use_key key = { .file = *file, .tgid = actor->tgid };
	bool other = config.target && !actor->target;
	struct page_use *use;

	use = other ? bpf_map_lookup_elem(&page_uses_others, &key) : bpf_map_lookup_elem(&page_uses, &key);
	if (use)
		return use;
	if (other) {
		use = add_use(&page_uses_others, &key, actor->task);
		if (!use) {
			__builtin_memset(&key.file, 0, sizeof(key.file));
			use = bpf_map_lookup_elem(&page_uses, &key);
			if (!use)
				use = add_use(&page_uses, &key, actor->task);
		}
	} else {
		use = add_use(&page_uses, &key, actor->task);
	}
	if (!use)
		count(LOST_PAGE_USES_FULL);
	else if (key.file.ino)
		name_page_file((__u64)inode);
	return use;
}

#endif
