/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Sends the paths of files to user space, once per file and window. */
#if SYSCALLS || SWITCHES || RUN_QUEUE || PAGE_CACHE

#include "files.h"

HERE bool find_task_file(struct task_struct *task, __s64 fd, struct found_file *found)
{
	return find_file(READ(task, files), fd, found);
}

struct scratch {
	union {
		struct file_record file;
		struct path_record path;
		struct call_record call;
		struct segment_record segment;
	};
	char slack[PATH_SLACK];
};

CPU_VALUE(scratch, struct scratch);
BPF_HASH(files_seen, struct file_key, __u8, 16384);

/* Sends the path of (mnt, dentry) once per window; mnt 0: within the file system only. */
HERE void emit_file(void *ctx, struct vfsmount *mnt, struct dentry *dentry)
{
	struct scratch *buffer = scratch_here();
	struct path_walk walk = {};
	struct file_record *record;
	struct file_key key = {};
	struct inode *inode;
	__u32 length;
	__u8 one = 1;

	if (!buffer || !dentry)
		return;
	inode = READ(dentry, d_inode);
	if (!inode)
		return;
	inode_key(inode, &key);
	if (files_seen.lookup(&key))
		return;
	if (files_seen.update(&key, &one)) {
		count(LOST_FILES_FULL);
		return;
	}
	record = &buffer->file;
	fill_file(record, &walk, &key, inode, mnt, dentry);
	REPEAT(PATH_NAMES, PATH_NAMES, walk_up, &walk);
	length = record->length;
	if (length > PATH_BYTES)
		return;
	asm volatile("" : "+r"(length));	/* hides the known bound, so that the mask for the verifier is not optimized away */
	length &= 2 * PATH_BYTES - 1;
	if (events.perf_submit(ctx, record, __builtin_offsetof(struct file_record, text) + length)) {
		count(LOST_RING_FILE);
		files_seen.delete(&key);	/* the next slow call sends it */
	}
}

HERE void emit_open_file(void *ctx, struct file *file)
{
	emit_file(ctx, READ(file, f_path.mnt), READ(file, f_path.dentry));
}
#endif
