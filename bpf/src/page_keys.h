/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Shared with bpf/src_bcc. Keys of files in the page cache, and totals of stalls. */
#ifndef WHYSTALL_PAGE_KEYS_H
#define WHYSTALL_PAGE_KEYS_H

#include "files.h"

/* File systems that are memory, or no storage at all (include/uapi/linux/magic.h). */
static __always_inline bool is_unstored(__u32 magic)
{
	switch (magic) {
	case 0x01021994:	/* tmpfs */
	case 0x9fa0:		/* proc */
	case 0x62656572:	/* sysfs */
	case 0x27e0eb:		/* cgroup */
	case 0x63677270:	/* cgroup2 */
	case 0x64626720:	/* debugfs */
	case 0x74726163:	/* tracefs */
		return true;
	}
	return false;
}

/* Sets the key of a file; of pages of a block device itself: the device, with inode 0. */
static __always_inline bool page_key(struct inode *inode, struct file_key *key)
{
	struct super_block *super = READ(inode, i_sb);

	if (is_unstored(READ(super, s_magic)))
		return false;
	if ((READ(inode, i_mode) & S_IFMT) == S_IFBLK) {
		key->ino = 0;
		key->gen = 0;
		key->dev = READ(inode, i_rdev);
		return key->dev;
	}
	inode_key(inode, key);
	return true;
}

/* Adds one stall of one thread: its total has one writer. */
static __always_inline void add_to_stall(struct stall_total *total, __u64 start, __u64 ns, __u64 pages)
{
	total->count++;
	total->total_ns += ns;
	total->pages += pages;
	if (ns >= total->max_ns) {
		total->max_ns = ns;
		total->longest_at = start;
	}
}

#endif
