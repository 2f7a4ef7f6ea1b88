/* SPDX-License-Identifier: Apache-2.0 */
/* Count the pages of a file in the page cache: by cachestat(2), or before Linux 6.5 by mincore(2) on a mapping. */
#include "internal.h"

static int64_t by_mapping(int fd, uint64_t offset, uint64_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from = hy_down(offset, page), total = 0;
	uint64_t length = hy_up(offset + bytes, page) - from;
	unsigned char resident[512];
	char *map;

	/* Never accessed, so nothing is read in. mincore reports to owners and writers of the file only (since 5.2). */
	map = k_mmap(length, PROT_NONE, MAP_SHARED, fd, (off_t)from);
	if (map == MAP_FAILED)
		return -1;
	for (uint64_t at = 0; at < length; at += sizeof(resident) * page) {
		uint64_t part = length - at < sizeof(resident) * page ? length - at : sizeof(resident) * page;

		if (syscall(SYS_mincore, map + at, part, resident)) {
			k_munmap(map, length);
			return -1;
		}
		for (uint64_t i = 0; i < part / page; i++)
			total += resident[i] & 1;
	}
	k_munmap(map, length);
	return (int64_t)(total * page);
}

/*
 * Returns the cached bytes of the range, in whole pages; -1: unknown. *unclean, if not NULL: those dirty or being written
 * back; 0 if unknown.
 */
int64_t hy_resident(int fd, uint64_t offset, uint64_t bytes, uint64_t *unclean)
{
	static int absent;	/* 1: a kernel without cachestat */
	struct k_cachestat_range range = { offset, bytes };
	int before = errno;
	struct k_cachestat stat;
	int64_t found = -1;

	if (unclean)
		*unclean = 0;
	if (!bytes)
		return 0;	/* the kernel takes 0 as the whole file */
	if (!__atomic_load_n(&absent, __ATOMIC_RELAXED)) {
		if (!k_cachestat(fd, &range, &stat)) {
			uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

			if (unclean)
				*unclean = (stat.dirty + stat.writeback) * page;
			return (int64_t)(stat.cached * page);
		}
		if (errno == ENOSYS || errno == EPERM)	/* EPERM: of an old seccomp filter */
			__atomic_store_n(&absent, 1, __ATOMIC_RELAXED);
	}
	if (__atomic_load_n(&absent, __ATOMIC_RELAXED))
		found = by_mapping(fd, offset, bytes);
	errno = before;
	return found;
}
