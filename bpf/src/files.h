/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Shared with bpf/src_bcc. The file of a descriptor, its identity and its full path. */
#ifndef WHYSTALL_FILES_H
#define WHYSTALL_FILES_H

#ifndef S_IFMT
#define S_IFMT 0170000
#define S_IFREG 0100000
#define S_IFDIR 0040000
#define S_IFBLK 0060000
#endif
#ifndef AT_FDCWD
#define AT_FDCWD (-100)
#endif
#define O_DSYNC_BIT 010000
#if defined(__TARGET_ARCH_arm64)
#define O_DIRECT_BIT 0200000
#else
#define O_DIRECT_BIT 040000
#endif

struct found_file {
	struct file *file;
	struct file_key key;
	__u32 mode;
};

static __always_inline void inode_key(struct inode *inode, struct file_key *key)
{
	struct super_block *super = READ(inode, i_sb);

	key->ino = READ(inode, i_ino);
	key->dev = READ(super, s_dev);
	key->gen = READ(inode, i_generation);
}

/* Files of an anonymous inode (eventfd, epoll ...) share it, so their names distinguish them. They do not count as regular
 * files, although their inode has that mode since 6.16. */
static __always_inline bool is_anonymous(struct file_key *key)
{
	return ANONYMOUS_DEV && key->dev == ANONYMOUS_DEV;
}

static __always_inline void name_anonymous(struct file_key *key, struct dentry *dentry)
{
	key->gen = (__u32)((__u64)dentry >> 5);
}

static __always_inline bool find_file(struct files_struct *files, __s64 fd, struct found_file *found)
{
	struct fdtable *table;
	struct file **slots;
	struct inode *inode;
	struct file *file;

	if (fd < 0 || !files)
		return false;
	table = READ(files, fdt);
	if (!table || fd >= READ(table, max_fds))
		return false;
	slots = READ(table, fd);
	if (bpf_probe_read_kernel(&file, sizeof(file), slots + fd) || !file)
		return false;
	found->file = file;
	inode = READ(file, f_inode);
	found->mode = READ(inode, i_mode);
	inode_key(inode, &found->key);
	if (is_anonymous(&found->key)) {
		found->mode = 0;
		name_anonymous(&found->key, READ(file, f_path.dentry));
	}
	return true;
}

static __always_inline bool is_storage(__u32 mode)
{
	mode &= S_IFMT;
	return mode == S_IFREG || mode == S_IFDIR || mode == S_IFBLK;
}

/* Returns any cached dentry of the inode; 0: none. */
static __always_inline struct dentry *any_dentry(struct inode *inode)
{
	struct hlist_node *alias = READ(inode, i_dentry.first);

	return alias ? (struct dentry *)((char *)alias - OFFSET_OF(struct dentry, d_u.d_alias)) : 0;
}

struct path_walk {
	struct dentry *dentry, *root;
	struct mount *mount;
	struct file_record *record;
};

/* One step up: a name, or from a mounted root to its mount point. Returns 1 at the top, or when there is no room. */
static long walk_up(__u32 i, struct path_walk *walk)
{
	struct file_record *record = walk->record;
	struct dentry *dentry = walk->dentry, *parent = READ(dentry, d_parent);
	struct mount *mount = walk->mount, *up;
	__u32 length = record->length;
	long n;

	if (dentry == walk->root || dentry == parent) {
		up = mount ? READ(mount, mnt_parent) : 0;
		if (up == mount) {
			record->flags &= ~FILE_TRUNCATED;
			return 1;
		}
		walk->dentry = READ(mount, mnt_mountpoint);
		walk->mount = up;
		walk->root = READ(up, mnt.mnt_root);
		return 0;
	}
	if (length > PATH_BYTES - 256)
		return 1;
	n = bpf_probe_read_kernel_str(record->text + length, 256, READ(dentry, d_name.name));
	if (n <= 0)
		return 1;
	record->length = length + n;
	walk->dentry = parent;
	return 0;
}

/*
 * Fills a file's record with everything but its path, and prepares the walk that writes the path. Without `mnt` the
 * path ends at the root of the file system. The length is kept in the buffer, where the verifier does not track it: in
 * a register it would verify every combination of names and mounts.
 */
static __always_inline void fill_file(struct file_record *record, struct path_walk *walk, struct file_key *key,
				      struct inode *inode, struct vfsmount *mnt, struct dentry *dentry)
{
	struct super_block *super = READ(inode, i_sb);
	struct file_system_type *type = READ(super, s_type);

	record->type = RECORD_FILE;
	record->flags = FILE_TRUNCATED | (mnt ? 0 : FILE_NO_MOUNT);
	if (!READ(dentry, d_hash.pprev) && dentry != READ(dentry, d_parent))
		record->flags |= FILE_UNLINKED;
	record->file = *key;
	record->size = READ(inode, i_size);
	record->mode = is_anonymous(key) ? 0 : READ(inode, i_mode);
	record->length = 0;
	__builtin_memset(record->fs, 0, sizeof(record->fs));
	bpf_probe_read_kernel_str(record->fs, sizeof(record->fs), READ(type, name));
	if (is_anonymous(key)) {	/* a name without a directory, which the walk takes for a root */
		long n = bpf_probe_read_kernel_str(record->text, 256, READ(dentry, d_name.name));

		record->length = n > 0 ? n : 0;
	}
	walk->record = record;
	walk->dentry = dentry;
	if (mnt) {
		walk->mount = (struct mount *)((char *)mnt - OFFSET_OF(struct mount, mnt));
		walk->root = READ(mnt, mnt_root);
	}
}

#endif
