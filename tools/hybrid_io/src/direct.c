/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The direct way of a file: a second open file description of the same inode, made through /proc/self/fd, lazily.
 * O_DIRECT is never toggled on the caller's own description, which others may share.
 */
#include <linux/stat.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include "internal.h"

#define REFUSED_MOST 3		/* refusals in a row after which no more is asked */

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
 * File systems that take O_DIRECT and then read or write through the page cache (tmpfs since 6.6), or hand it to a
 * process of their own that may do anything with it (FUSE). All others that do not tell their alignment are tried.
 */
static bool pretends(const struct statfs *about)
{
	switch ((uint32_t)about->f_type) {
	case 0x01021994:	/* tmpfs */
	case 0x858458f6:	/* ramfs */
	case 0x958458f6:	/* hugetlbfs */
	case 0x65735546:	/* FUSE */
	case 0x00009fa0:	/* proc and the like: no pages at all */
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
 * File systems that make checksums of the data while it is written. From the page cache that is sound; from memory that
 * another thread changes meanwhile, the checksum may be of other bytes than the device got, and reading them fails ever
 * after (btrfs before 6.15; OpenZFS fails the write). So these are given memory that nobody else knows.
 */
static bool has_checksums(const struct statfs *about)
{
	return (uint32_t)about->f_type == 0x9123683e || (uint32_t)about->f_type == 0x2fc12fc1;
}

/* What direct I/O asks of offsets and of memory. 0 where there can be none. */
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
		system.f_type = 0x9fa0;	/* not to be told: as of none that can */
	file->copies = has_checksums(&system);
	if (!syscall(SYS_statx, file->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &now) && (now.mask & STATX_DIOALIGN)) {
		file->direct_align = now.dio_offset_align;
		file->memory_align = now.dio_mem_align;
	} else if (!pretends(&system)) {
		/* a logical block is at most a page; whether it works at all is seen at the first request */
		file->direct_align = file->memory_align = page;
	}
	if (!file->direct_align || !file->memory_align || file->direct_align & (file->direct_align - 1)) {
		file->direct_align = file->memory_align = 0;
		file->unsupported_errno = EOPNOTSUPP;
		return;
	}
	/* Whole pages, so that no page is written both ways, and no file system block partly (which serialises). */
	if (file->direct_align < page)
		file->direct_align = page;
}

static void give_up(struct hy_file *file, int why)
{
	__atomic_store_n(&file->unsupported_errno, (uint32_t)(why ? why : EINVAL), __ATOMIC_RELAXED);
	__atomic_fetch_or(&file->flags, HY_F_UNSUPPORTED, __ATOMIC_RELEASE);
}

/*
 * A program that has used up half of the descriptors it may have is left the rest: not every call that makes one could
 * be told to wait until ours are given back (accept(2), for one). The number just made is the lowest that was free.
 */
static bool crowded(int fd)
{
	struct rlimit limit;

	return !syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &limit) && (rlim_t)fd >= limit.rlim_cur / 2;
}

/*
 * Opened by whoever needs it first. It is looked at before each use: a program may close descriptors that are not its
 * own (closefrom), and another file may then have the number.
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
			file->direct.fd = fd = -1;	/* not ours any more: leave it to whom it belongs */
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
		 * Closing any descriptor of a file ends the process's POSIX locks on it, and moving one closes one: so
		 * only in programs that may count on numbers, where the shim keeps us from locked files.
		 */
		fd = hy_own_fd_take(&file->direct, fd, file->adopted ? HY_FD_LEAST : 3);
		if (fd < 0) {
			/* refused (EINVAL), not allowed any more (EACCES), no /proc (ENOENT), too many open (EMFILE) */
			if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != EINTR)
				give_up(file, errno);
		} else if (file->direct.dev != file->dev || file->direct.ino != file->ino || k_fstat(fd, &about)) {
			hy_own_fd_close(&file->direct);	/* the caller's descriptor is another file by now */
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

	if (flags >= 0 && flags & O_DIRECT)	/* else it was closed, and the number is the program's by now */
		hy_own_fd_close(&file->direct);
	file->direct.fd = -1;
}
