/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers: arrays of them (iovec), and aligned bounce buffers for requests with unaligned memory. At most HY_BOUNCE_KEPT
 * of 2 MiB are kept; further ones are allocated and freed.
 */
#include <string.h>

#include "internal.h"

#define HY_BOUNCE_KEPT 4
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22	/* since Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

static void *kept[HY_BOUNCE_KEPT];

void *hy_bounce_get(void)
{
	void *memory;

	for (int i = 0; i < HY_BOUNCE_KEPT; i++) {
		memory = __atomic_exchange_n(&kept[i], NULL, __ATOMIC_ACQ_REL);
		if (memory)
			return memory;
	}
	memory = k_mmap(HY_BOUNCE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return memory == MAP_FAILED ? NULL : memory;
}

void hy_bounce_put(void *memory)
{
	void *none;

	for (int i = 0; i < HY_BOUNCE_KEPT; i++) {
		none = NULL;
		if (__atomic_compare_exchange_n(&kept[i], &none, memory, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			return;
	}
	k_munmap(memory, HY_BOUNCE_BYTES);
}

/*
 * The kernel returns EFAULT for invalid memory, where a copy made here would kill the program: so its pages are populated
 * first. Before Linux 5.14, without MADV_POPULATE, only unmapped memory is detected (mincore), not protected memory.
 */
bool hy_reachable(const void *data, size_t bytes, bool write)
{
	static int old;	/* 1: the kernel lacks MADV_POPULATE */
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t from = hy_down((uint64_t)data, page), to = hy_up((uint64_t)data + bytes, page);
	int before = errno;
	bool reachable = false;

	if (!bytes)
		return true;
	if (to <= from)
		return false;
	if (!__atomic_load_n(&old, __ATOMIC_RELAXED)) {
		if (!k_madvise((void *)from, to - from, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ))
			return true;
		if (errno == EINVAL) {	/* due to the kernel or to this memory: try with our own */
			char here;
			void *own = (void *)hy_down((uint64_t)&here, page);

			if (k_madvise(own, page, MADV_POPULATE_READ) && errno == EINVAL)
				__atomic_store_n(&old, 1, __ATOMIC_RELAXED);
		}
	}
	if (__atomic_load_n(&old, __ATOMIC_RELAXED)) {
		unsigned char resident[256];

		reachable = true;
		while (reachable && from < to) {
			uint64_t part = to - from < 256 * page ? to - from : 256 * page;

			reachable = !syscall(SYS_mincore, from, part, resident);
			from += part;
		}
	}
	errno = before;
	return reachable;
}

void hy_cursor_move(struct hy_cursor *cursor, size_t bytes)
{
	while (cursor->count && bytes >= hy_cursor_run(cursor)) {
		bytes -= hy_cursor_run(cursor);
		cursor->vector++;
		cursor->count--;
		cursor->skip = 0;
	}
	if (cursor->count)
		cursor->skip += bytes;
}

/* Fills `slice` with at most `most` vectors for the next `bytes`; returns the bytes they hold. */
size_t hy_cursor_slice(const struct hy_cursor *cursor, size_t bytes, struct iovec *slice, int most, int *count)
{
	struct hy_cursor at = *cursor;
	size_t total = 0;

	for (*count = 0; *count < most && total < bytes && at.count;) {
		size_t run = hy_cursor_run(&at);

		if (run > bytes - total)
			run = bytes - total;
		if (run) {
			slice[*count] = (struct iovec){ hy_cursor_here(&at), run };
			++*count;
		}
		total += run;
		hy_cursor_move(&at, run);
	}
	return total;
}

void hy_cursor_copy(struct hy_cursor cursor, void *memory, size_t bytes, bool from_memory)
{
	char *other = memory;

	while (bytes && cursor.count) {
		size_t run = hy_cursor_run(&cursor);

		if (run > bytes)
			run = bytes;
		if (from_memory)
			memcpy(hy_cursor_here(&cursor), other, run);
		else
			memcpy(other, hy_cursor_here(&cursor), run);
		other += run;
		bytes -= run;
		hy_cursor_move(&cursor, run);
	}
}

bool hy_cursor_reachable(struct hy_cursor cursor, size_t bytes, bool write)
{
	while (bytes && cursor.count) {
		size_t run = hy_cursor_run(&cursor);

		if (run > bytes)
			run = bytes;
		if (!hy_reachable(hy_cursor_here(&cursor), run, write))
			return false;
		bytes -= run;
		hy_cursor_move(&cursor, run);
	}
	return true;
}

