/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that stream through the page cache; their pages are dropped behind them.
 *
 * Small requests: if the cache is at its limit, checked every 8 MiB, so that a small request costs no further system call.
 * Large reads into unaligned memory: always. Direct, they would be copied from an aligned buffer while the device waits;
 * measured (virtio, 4 MiB requests), that is 1.7 times slower than through the cache, where read-ahead keeps the device
 * busy, and takes a quarter more CPU, dropping the pages included.
 *
 * Pages cached before the stream may be in use by others and are kept. So the cache is tested ahead of the stream, farther
 * than read-ahead goes. If a stream is detected too late for that (after a seek), they are distinguished by the blocks that
 * this thread read from devices meanwhile (getrusage(2), ru_inblock): cached pages cost none.
 */
#include <stdlib.h>
#include <sys/resource.h>

#include "internal.h"

#define CHECK_BYTES (8ull << 20)	/* bytes between two checks; more frequent ones cost more than they save */
#define UNDER_WAY_MOST (32ull << 20)
#define DROP_MOST (64ull << 20)	/* dropped per check: far more than was added since the last, and done quickly */
#define CLOSE_MOST (1ull << 30)
#define AHEAD (16ull << 20)	/* farther than read-ahead goes: read_ahead_kb is 128 by default, 8192 where raised */
#define INFLOW_MOST (32ull << 20)	/* most bytes of read-ahead */
#define LATER 16		/* most runs per check that are being written and cannot be dropped yet */

/* Returns the bytes that this thread read from devices since the last call. */
static uint64_t device_reads(void)
{
	static __thread uint64_t last;
	uint64_t before = last;
	struct rusage usage;

	if (!syscall(SYS_getrusage, RUSAGE_THREAD, &usage))
		last = (uint64_t)usage.ru_inblock * 512;
	return last - before;
}

static uint64_t load(const uint64_t *value)
{
	return __atomic_load_n(value, __ATOMIC_RELAXED);
}

static void store(uint64_t *value, uint64_t to)
{
	__atomic_store_n(value, to, __ATOMIC_RELAXED);
}

void hy_passing_start(struct hy_file *file, uint64_t position, uint64_t file_bytes)
{
	device_reads();
	hy_passing_seek(file, position);
	/* an adopted file may have been read before */
	if (!file->adopted && file->policy.mode == HY_AUTO && (file->open_flags & O_ACCMODE) != O_WRONLY &&
	    file_bytes >= CHECK_BYTES)
		hy_history_survey(file->inode, file->fd, 0, file_bytes < AHEAD + CHECK_BYTES ? file_bytes : AHEAD + CHECK_BYTES);
}

void hy_passing_seek(struct hy_file *file, uint64_t position)
{
	for (int op = 0; op < HY_OPS; op++) {
		store(&file->runs[op].small, 0);
		store(&file->runs[op].known, position);
	}
}

/* Whether most of the `bytes` just read came from the device, not from the cache. */
static bool from_device(struct hy_file *file, uint64_t bytes)
{
	uint64_t inflow = load(&file->inflow) + device_reads();
	bool ours;

	if (inflow > INFLOW_MOST + bytes)
		inflow = INFLOW_MOST + bytes;
	ours = inflow >= bytes / 2;
	store(&file->inflow, inflow > bytes ? inflow - bytes : 0);
	return ours;
}

/* Writes a range back and drops it. Not by the caller's descriptor, whose fsync must return errors. */
static uint64_t write_and_drop(struct hy_file *file, uint64_t offset, uint64_t bytes)
{
	const unsigned int whole = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
	int fd = hy_direct_get(file);

	if (fd < 0 || k_sync_range(fd, (off_t)offset, (off_t)bytes, whole))
		return 0;
	k_fadvise(file->fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
	return bytes;
}

/*
 * Drops at most `most` bytes of the file from the cache; returns the number dropped. Pages being written are left for
 * later, except for `wait` bytes.
 */
static uint64_t drop_cached(struct hy_file *file, uint64_t most, uint64_t wait)
{
	uint64_t offset, bytes, left = most, dropped = 0, unclean, later[LATER][2];
	bool writes = (file->open_flags & O_ACCMODE) != O_RDONLY;
	int fd = file->fd, waiting = 0;

	while (left && waiting < LATER && hy_history_droppable(file->inode, left, &offset, &bytes)) {
		int64_t cached = hy_resident(fd, offset, bytes, &unclean);

		/* Does not wait: that would consume the error that the caller's fsync must return. */
		if (writes && (unclean || cached < 0))
			k_sync_range(fd, (off_t)offset, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
		k_fadvise(fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
		if (cached > (int64_t)unclean)
			dropped += (uint64_t)cached - unclean;
		if (unclean && wait) {
			uint64_t part = bytes < wait ? bytes : hy_up(wait, CHECK_BYTES), done;

			done = part < bytes ? write_and_drop(file, offset, part) : write_and_drop(file, offset, bytes);
			wait = done && done < wait ? wait - done : 0;
			dropped += done < unclean ? done : unclean;
			offset += done;
			bytes -= done;
			unclean = bytes ? unclean : 0;
		}
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

static bool drop_other(struct hy_file *file)
{
	return drop_cached(file, DROP_MOST, 0) > 0;
}

static void survey(struct hy_file *file, uint64_t from, uint64_t to, uint64_t file_bytes)
{
	if (file->policy.mode == HY_AUTO)
		hy_history_survey(file->inode, file->fd, from, to < file_bytes ? to : file_bytes);
}

/*
 * Whether a writer is so far ahead of the device that it must wait. With fewer bytes in flight the device would idle
 * (measured: 691 MB/s with 8 MiB, 924 with 32); with more the limit would be exceeded.
 */
static bool must_wait(struct hy_file *file, const struct hy_pressure *pressure)
{
	uint64_t most = pressure->limit_bytes / 16;

	if (most > UNDER_WAY_MOST)
		most = UNDER_WAY_MOST;
	return hy_history_once(file->inode) >= (most > CHECK_BYTES ? most : CHECK_BYTES);
}

static void passed(struct hy_file *file, enum hy_op op, uint64_t start, uint64_t end)
{
	struct hy_pressure pressure;
	enum hy_note note = HY_NOTE_WRITTEN;
	struct stat about;
	bool ours = true;

	if (k_fstat(file->fd, &about) || about.st_dev != file->dev || about.st_ino != file->ino)
		return;
	hy_pressure_moved(end - start);
	hy_pressure_get(&file->policy, &pressure);
	if (op == HY_READ) {
		ours = from_device(file, end - start);
		survey(file, end + AHEAD, end + AHEAD + CHECK_BYTES, (uint64_t)about.st_size);
		note = (uint64_t)about.st_size > pressure.limit_bytes ? HY_NOTE_STREAM : HY_NOTE_ONCE;
	}
	if (hy_under_pressure(&file->policy, &pressure)) {
		/* starts writeback of the bytes just written; they are dropped at the next check */
		if (op == HY_WRITE)
			k_sync_range(file->fd, (off_t)start, (off_t)(end - start), SYNC_FILE_RANGE_WRITE);
		if (!drop_cached(file, DROP_MOST, op == HY_WRITE && must_wait(file, &pressure) ? CHECK_BYTES : 0))
			hy_file_each_other(file, drop_other);
	}
	hy_history_note(file->inode, note, start, end - start, (uint64_t)about.st_size, ours);
}

/* Called before a large read through the cache; returns whether all of it was cached before this stream. */
bool hy_passing_before(struct hy_file *file, uint64_t offset, uint64_t bytes)
{
	uint64_t end = offset + bytes;
	bool continues = __atomic_exchange_n(&file->stream_end, end, __ATOMIC_RELAXED) == offset;

	hy_history_survey(file->inode, file->fd, continues ? offset + AHEAD : offset, end + AHEAD);
	return hy_history_foreign(file->inode, offset, bytes);
}

/* Called after it. */
void hy_passing_stream(struct hy_file *file, uint64_t offset, uint64_t bytes, uint64_t file_bytes)
{
	__atomic_store_n(&file->streams, true, __ATOMIC_RELAXED);
	hy_pressure_moved(bytes);
	hy_history_note(file->inode, HY_NOTE_STREAM, offset, bytes, file_bytes, true);
	if (hy_history_once(file->inode) >= CHECK_BYTES || offset + bytes >= file_bytes)
		drop_cached(file, DROP_MOST, 0);
}

/* Counts bytes that went through the cache; with HY_POSITION, up to the present position. */
void hy_passing(struct hy_file *file, enum hy_op op, off_t offset, uint64_t bytes)
{
	struct hy_run *run = &file->runs[op];
	uint64_t start, end;
	int before;

	if (file->policy.mode == HY_ALWAYS_BUFFERED)
		return;
	if (offset == HY_POSITION) {
		if (__atomic_add_fetch(&run->small, bytes, __ATOMIC_RELAXED) < CHECK_BYTES)
			return;
		bytes = __atomic_exchange_n(&run->small, 0, __ATOMIC_RELAXED);
		before = errno;
		end = (uint64_t)k_lseek(file->fd, 0, SEEK_CUR);
		if ((int64_t)end >= 0 && end >= bytes) {
			start = __atomic_exchange_n(&run->known, end, __ATOMIC_RELAXED);
			if (start == end - bytes)	/* not moved by a seek: a stream */
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
	if (end - start < CHECK_BYTES || end < start)
		return;
	store(&run->start, end);
	before = errno;
	passed(file, op, start, end);
	errno = before;
}

/* Drops what may be dropped: after the close that is not possible. */
void hy_passing_close(struct hy_file *file)
{
	struct hy_pressure pressure;
	int before = errno;

	if (file->streams)
		hy_history_ahead(file->inode, file->stream_end, file->stream_end + AHEAD);
	if (file->policy.mode == HY_ALWAYS_BUFFERED || !hy_history_once(file->inode))
		return;
	hy_pressure_get(&file->policy, &pressure);
	if (file->streams || hy_under_pressure(&file->policy, &pressure))
		drop_cached(file, CLOSE_MOST, 0);
	errno = before;
}
