/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls by number: the shim interposes libc's functions, and the engine must not call those.
 * Each returns what the call returns, with errno set on -1.
 */
#ifndef WHYSTALL_HYBRID_KERNEL_H
#define WHYSTALL_HYBRID_KERNEL_H

#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8 && sizeof(off_t) == 8, "64-bit systems only: offsets fit one register");

static inline int k_open(const char *path, int flags, mode_t mode)
{
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static inline int k_close(int fd)
{
	return (int)syscall(SYS_close, fd);
}

static inline ssize_t k_read(int fd, void *data, size_t bytes)
{
	return syscall(SYS_read, fd, data, bytes);
}

static inline ssize_t k_write(int fd, const void *data, size_t bytes)
{
	return syscall(SYS_write, fd, data, bytes);
}

static inline ssize_t k_pread(int fd, void *data, size_t bytes, off_t offset)
{
	return syscall(SYS_pread64, fd, data, bytes, offset);
}

static inline ssize_t k_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
	return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

static inline ssize_t k_readv(int fd, const struct iovec *vectors, int count)
{
	return syscall(SYS_readv, fd, vectors, count);
}

static inline ssize_t k_writev(int fd, const struct iovec *vectors, int count)
{
	return syscall(SYS_writev, fd, vectors, count);
}

/* The offset is passed in two halves; 64-bit kernels use the first only. */
static inline ssize_t k_preadv(int fd, const struct iovec *vectors, int count, off_t offset)
{
	return syscall(SYS_preadv, fd, vectors, count, offset, 0L);
}

static inline ssize_t k_pwritev(int fd, const struct iovec *vectors, int count, off_t offset)
{
	return syscall(SYS_pwritev, fd, vectors, count, offset, 0L);
}

static inline off_t k_lseek(int fd, off_t offset, int whence)
{
	return syscall(SYS_lseek, fd, offset, whence);
}

static inline int k_ftruncate(int fd, off_t bytes)
{
	return (int)syscall(SYS_ftruncate, fd, bytes);
}

static inline int k_fallocate(int fd, off_t offset, off_t bytes)
{
	return (int)syscall(SYS_fallocate, fd, 0, offset, bytes);
}

static inline int k_unlink(const char *path)
{
	return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

/* Returns this process's limit of the size of a file. */
static inline uint64_t k_largest_file(void)
{
	struct { uint64_t now, most; } limit;	/* of the kernel, whatever libc's rlim_t is */

	return syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, NULL, &limit) ? UINT64_MAX : limit.now;
}

static inline int k_fsync(int fd)
{
	return (int)syscall(SYS_fsync, fd);
}

static inline int k_fdatasync(int fd)
{
	return (int)syscall(SYS_fdatasync, fd);
}

static inline int k_fadvise(int fd, off_t offset, off_t bytes, int advice)
{
	return (int)syscall(SYS_fadvise64, fd, offset, bytes, advice);
}

static inline int k_sync_range(int fd, off_t offset, off_t bytes, unsigned int flags)
{
#ifdef SYS_sync_file_range
	return (int)syscall(SYS_sync_file_range, fd, offset, bytes, flags);
#else
	return (int)syscall(SYS_sync_file_range2, fd, flags, offset, bytes);
#endif
}

static inline int k_getfl(int fd)
{
	return (int)syscall(SYS_fcntl, fd, F_GETFL, 0);
}

/* Duplicates a descriptor to `least` or above, closed at exec. */
static inline int k_dup_above(int fd, int least)
{
	return (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, least);
}

static inline int k_fstat(int fd, struct stat *about)
{
	return (int)syscall(SYS_fstat, fd, about);	/* 64-bit: the kernel's layout is libc's */
}

static inline void *k_mmap(size_t bytes, int protection, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, NULL, bytes, protection, flags, fd, offset);
}

static inline int k_munmap(void *address, size_t bytes)
{
	return (int)syscall(SYS_munmap, address, bytes);
}

static inline int k_madvise(void *address, size_t bytes, int advice)
{
	return (int)syscall(SYS_madvise, address, bytes, advice);
}

/* Resident pages of a range of a file, since Linux 6.5 (commit cf264e1329fb); the number is the same everywhere. */
struct k_cachestat_range { uint64_t offset, bytes; };
struct k_cachestat { uint64_t cached, dirty, writeback, evicted, recently_evicted; };

static inline int k_cachestat(int fd, const struct k_cachestat_range *range, struct k_cachestat *stat)
{
	return (int)syscall(451, fd, range, stat, 0);
}

#endif
