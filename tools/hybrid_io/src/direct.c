/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct I/O of a file: by a second open file description of the same inode, opened through /proc/self/fd when needed.
 * O_DIRECT is never toggled on the caller's description, which others may share.
 */
#include <linux/stat.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include "internal.h"

#define REFUSED_MOST 3		/* successive refusals after which direct I/O is no longer tried */

#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x2000u	/* since Linux 6.1 */
#endif

/* struct statx as of 6.1, since older headers end before the two members. */
struct statx_now {
	uint32_t mask, blksize;
	uint64_t unused[18];
	uint32_t dio_mem_align, dio_offset_align;
	uint64_t more[12];
};
_Static_assert(sizeof(struct statx_now) == 256, "the kernel writes 256 bytes");

/*
 * File systems that accept O_DIRECT and use the page cache (tmpfs since 6.6), or pass it to a process of unknown behaviour
 * (FUSE). All others that do not report their alignment are tried.
 */
static bool pretends(const struct statfs *about)
{
	switch ((uint32_t)about->f_type) {
	case 0x01021994:	/* tmpfs */
	case 0x858458f6:	/* ramfs */
	case 0x958458f6:	/* hugetlbfs */
	case 0x65735546:	/* FUSE */
	case 0x00009fa0:	/* proc */
	case 0x62656572:	/* sysfs */
	case 0x0027e0eb:	/* cgroup */
	case 0x63677270:	/* cgroup2 */
	case 0x64626720:	/* debugfs */
	case 0x74726163:	/* tracefs */
		return true;
	}
	return false;
}

/*
 * File systems that compute checksums while writing. If another thread changes the memory of a direct write meanwhile, the
 * checksum may not match the data on the device, and reading it fails from then on (btrfs before 6.15; OpenZFS fails the
 * write). So these are written from private copies.
 */
static bool has_checksums(const struct statfs *about)
{
	return (uint32_t)about->f_type == 0x9123683e || (uint32_t)about->f_type == 0x2fc12fc1;
}

/* Sets the alignment of offsets and memory that direct I/O requires; 0: not possible. */
void hy_direct_learn(struct hy_file *file, const struct stat *about)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct statx_now now;
	struct statfs system;

	file->direct.fd = -1;
	file->direct_align = file->memory_align = 0;
	if (!S_ISREG(about->st_mode)) {
		file->unsupported_errno = EINVAL;
		return;
	}
	memset(&now, 0, sizeof(now));
	if (syscall(SYS_fstatfs, file->fd, &system))
		system.f_type = 0x9fa0;	/* unknown: treat as unsupported */
	file->copies = has_checksums(&system);
	if (!syscall(SYS_statx, file->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &now) && (now.mask & STATX_DIOALIGN)) {
		file->direct_align = now.dio_offset_align;
		file->memory_align = now.dio_mem_align;
	} else if (!pretends(&system)) {
		/* a logical block is at most a page; the first request shows whether direct I/O works */
		file->direct_align = file->memory_align = page;
	}
	if (!file->direct_align || !file->memory_align || file->direct_align & (file->direct_align - 1)) {
		file->direct_align = file->memory_align = 0;
		file->unsupported_errno = EOPNOTSUPP;
		return;
	}
	/* Whole pages: no page is written both direct and buffered, and no file system block in part (which serialises). */
	if (file->direct_align < page)
		file->direct_align = page;
}

static void give_up(struct hy_file *file, int why)
{
	__atomic_store_n(&file->unsupported_errno, (uint32_t)(why ? why : EINVAL), __ATOMIC_RELAXED);
	__atomic_fetch_or(&file->flags, HY_F_UNSUPPORTED, __ATOMIC_RELEASE);
}

/*
 * Whether the program has used half of its limit of descriptors: then we use none, since not every call that needs one can
 * be retried after closing ours (accept(2)). `fd`, just opened, was the lowest free number.
 */
static bool crowded(int fd)
{
	struct rlimit limit;

	return !syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &limit) && (rlim_t)fd >= limit.rlim_cur / 2;
}

/*
 * Opened at first use, and checked before each use: a program may close all descriptors (closefrom), and another file may
 * then have the number.
 */
int hy_direct_get(struct hy_file *file)
{
	int keep = O_ACCMODE | O_SYNC | O_DSYNC | O_NOATIME | O_LARGEFILE, before = errno, flags, fd;
	struct stat about;
	char path[40];

	pthread_mutex_lock(&file->opening);
	fd = file->direct.fd;
	if (fd >= 0) {
		flags = k_getfl(fd);
		if (!(flags >= 0 && (flags & O_DIRECT) && hy_own_fd_valid(&file->direct)))
			file->direct.fd = fd = -1;	/* the program's by now: not closed here */
	}
	if (fd < 0 && !(hy_flags(file) & HY_F_UNSUPPORTED)) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", file->fd);
		fd = k_open(path, (file->open_flags & keep) | O_DIRECT | O_CLOEXEC, 0);
		if (fd >= 0 && crowded(fd)) {
			k_close(fd);
			fd = -1;
			errno = EMFILE;
		}
		/*
		 * Moved out of the low numbers only under the shim, which excludes locked files: moving closes a
		 * descriptor, and that ends the process's POSIX locks on the file.
		 */
		fd = hy_own_fd_take(&file->direct, fd, file->adopted ? HY_FD_LEAST : 3);
		if (fd < 0) {
			/* refused (EINVAL), not allowed any more (EACCES), no /proc (ENOENT), too many open (EMFILE) */
			if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != EINTR)
				give_up(file, errno);
		} else if (file->direct.dev != file->dev || file->direct.ino != file->ino || k_fstat(fd, &about)) {
			hy_own_fd_close(&file->direct);	/* the caller's descriptor is of another file by now */
			fd = -1;
		}
	}
	pthread_mutex_unlock(&file->opening);
	errno = before;
	return fd;
}

void hy_direct_refused(struct hy_file *file)
{
	if (__atomic_add_fetch(&file->refused, 1, __ATOMIC_RELAXED) >= REFUSED_MOST)
		give_up(file, EINVAL);
}

void hy_direct_worked(struct hy_file *file)
{
	if (__atomic_load_n(&file->refused, __ATOMIC_RELAXED))
		__atomic_store_n(&file->refused, 0, __ATOMIC_RELAXED);
}

void hy_direct_close(struct hy_file *file)
{
	int flags = file->direct.fd < 0 ? -1 : k_getfl(file->direct.fd);

	if (flags >= 0 && flags & O_DIRECT)	/* else it was closed and the number reused */
		hy_own_fd_close(&file->direct);
	file->direct.fd = -1;
}
