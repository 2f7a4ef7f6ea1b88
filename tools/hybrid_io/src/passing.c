/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small requests go through the cache, and a stream of them fills it all the same. What a stream of this process has
 * put there and passed is given back once the cache is at its limit.
 *
 * Looked at once in 2 MiB, so that a small request costs no further system call. What was in the cache before the stream
 * came, somebody else may want: it is left there. That is told by what this thread had the device read meanwhile
 * (getrusage(2), ru_inblock): pages that were there already cost no reading.
 */
#include <stdlib.h>
#include <sys/resource.h>

#include "internal.h"

#define LOOK (2ull << 20)	/* bytes between two looks */
#define GIVE_MOST (64ull << 20)	/* given back at one look: far more than came in, and still soon done */
#define CLOSE_MOST (1ull << 30)
#define CREDIT_MOST (32ull << 20)	/* readahead runs ahead of the reader by at most that */
#define LATER 16		/* runs that could not be dropped yet, being written */

static uint64_t device_reads(void)
{
	struct rusage usage;

	return syscall(SYS_getrusage, RUSAGE_THREAD, &usage) ? 0 : (uint64_t)usage.ru_inblock * 512;
}

static uint64_t load(const uint64_t *value)
{
	return __atomic_load_n(value, __ATOMIC_RELAXED);
}

static void store(uint64_t *value, uint64_t to)
{
	__atomic_store_n(value, to, __ATOMIC_RELAXED);
}

void hy_passing_start(struct hy_file *file, uint64_t position)
{
	file->inflow.thread = syscall(SYS_gettid);
	file->inflow.seen = device_reads();
	hy_passing_seek(file, position);
}

void hy_passing_seek(struct hy_file *file, uint64_t position)
{
	for (int op = 0; op < HY_OPS; op++) {
		store(&file->runs[op].small, 0);
		store(&file->runs[op].known, position);
	}
}

/* Whether this thread had most of `bytes` read from the device. Threads that take turns cannot be told. */
static bool brought_in(struct hy_inflow *inflow, uint64_t bytes)
{
	int64_t thread = syscall(SYS_gettid);
	uint64_t now = device_reads(), credit = load(&inflow->credit);
	bool ours;

	if (__atomic_exchange_n(&inflow->thread, thread, __ATOMIC_RELAXED) != thread)
		credit = 0;
	else
		credit += now - load(&inflow->seen);
	store(&inflow->seen, now);
	if (credit > CREDIT_MOST)
		credit = CREDIT_MOST;
	ours = credit >= bytes / 2;
	store(&inflow->credit, credit > bytes ? credit - bytes : 0);
	return ours;
}

/* Gives back at most `most` bytes of the file; how many the cache holds no more. */
static uint64_t give_back(struct hy_file *file, uint64_t most)
{
	uint64_t offset, bytes, left = most, dropped = 0, unclean, later[LATER][2];
	bool writes = (file->open_flags & O_ACCMODE) != O_RDONLY;
	int fd = file->fd, waiting = 0;

	while (left && waiting < LATER && hy_history_droppable(file->inode, left, &offset, &bytes)) {
		int64_t before = hy_resident(fd, offset, bytes, &unclean), after;

		/* Only begun, not waited for: that would take the error from the caller's own fsync. */
		if (writes && (unclean || before < 0))
			k_sync_range(fd, (off_t)offset, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
		k_fadvise(fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
		after = hy_resident(fd, offset, bytes, &unclean);
		if (before > after)
			dropped += (uint64_t)(before - after);
		if (unclean) {
			later[waiting][0] = offset;
			later[waiting++][1] = bytes;
		}
		left = left > bytes ? left - bytes : 0;
	}
	while (waiting--)
		hy_history_again(file->inode, later[waiting][0], later[waiting][1]);
	if (dropped)
		hy_add(&hy_counters()->dropped_bytes, dropped);
	return dropped;
}

static bool give_back_other(struct hy_file *file)
{
	return give_back(file, GIVE_MOST) > 0;
}

static void passed(struct hy_file *file, enum hy_op op, uint64_t start, uint64_t end)
{
	struct hy_pressure pressure;
	enum hy_note note = HY_NOTE_WRITTEN;
	struct stat about;

	if (k_fstat(file->fd, &about) || about.st_dev != file->dev || about.st_ino != file->ino)
		return;
	hy_pressure_moved(end - start);
	hy_pressure_get(&file->policy, &pressure);
	if (op == HY_READ && !brought_in(&file->inflow, end - start))
		note = HY_NOTE_READ;
	else if (op == HY_READ)
		note = (uint64_t)about.st_size > pressure.limit_bytes ? HY_NOTE_STREAM : HY_NOTE_ONCE;
	hy_history_note(file->inode, note, start, end - start, (uint64_t)about.st_size);
	if (hy_under_pressure(&file->policy, &pressure) && !give_back(file, GIVE_MOST))
		hy_file_each_other(file, give_back_other);
}

/* Bytes that went through the cache; with HY_POSITION, up to where the descriptor is now. */
void hy_passing(struct hy_file *file, enum hy_op op, off_t offset, uint64_t bytes)
{
	struct hy_run *run = &file->runs[op];
	uint64_t start, end;
	int before;

	if (file->policy.mode == HY_ALWAYS_BUFFERED)
		return;
	if (offset == HY_POSITION) {
		if (__atomic_add_fetch(&run->small, bytes, __ATOMIC_RELAXED) < LOOK)
			return;
		bytes = __atomic_exchange_n(&run->small, 0, __ATOMIC_RELAXED);
		before = errno;
		end = (uint64_t)k_lseek(file->fd, 0, SEEK_CUR);
		if ((int64_t)end >= 0 && end >= bytes) {
			start = __atomic_exchange_n(&run->known, end, __ATOMIC_RELAXED);
			if (start == end - bytes)	/* nobody has moved it: a stream */
				passed(file, op, start, end);
		}
		errno = before;
		return;
	}
	end = (uint64_t)offset + bytes;
	if (load(&run->end) != (uint64_t)offset)
		store(&run->start, (uint64_t)offset);
	store(&run->end, end);
	start = load(&run->start);
	if (end - start < LOOK || end < start)
		return;
	store(&run->start, end);
	before = errno;
	passed(file, op, start, end);
	errno = before;
}

/* The last chance: once it is closed, nothing of it can be given back. */
void hy_passing_close(struct hy_file *file)
{
	struct hy_pressure pressure;
	int before = errno;

	if (file->policy.mode == HY_ALWAYS_BUFFERED || !hy_history_own(file->inode))
		return;
	hy_pressure_get(&file->policy, &pressure);
	if (hy_under_pressure(&file->policy, &pressure))
		give_back(file, CLOSE_MOST);
	errno = before;
}
