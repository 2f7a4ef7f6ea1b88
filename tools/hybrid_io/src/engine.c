/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request: split into an unaligned head, a part that can be direct, and an unaligned tail.
 *
 * The kernel keeps direct and buffered I/O coherent: a direct read first writes back dirty pages of its range, a direct
 * write drops the range's pages before and after. Only an mmap of the range is undefined during a direct write to it; see
 * hybrid_file.py.
 */
#include <limits.h>
#include <sys/resource.h>

#include "internal.h"

#define PIECE (1ull << 20)	/* granularity at which a range is tested for cached parts */
#define SLICE 64		/* most vectors per buffered call */
#define ROWS 256		/* the same for direct calls, each of which waits for the device */
#define WORTH (256ull << 10)	/* smaller aligned parts are copied together with the following ones */

struct request {
	struct hy_file *file;
	enum hy_op op;
	struct hy_cursor at;
	uint64_t offset, done;	/* of the file; of the request */
	uint64_t file_bytes;	/* as it was at the start */
	int failed;		/* errno of the part that failed */
	struct hy_tally tally;
};

/* Makes the whole request on the caller's descriptor. */
static ssize_t by_kernel(struct hy_file *file, enum hy_op op, const struct iovec *vectors, int count, off_t offset)
{
	bool positioned = offset == HY_POSITION, read = op == HY_READ, locked;
	int fd = file->fd;
	ssize_t got;

	if (!positioned && count == 1)
		return read ? k_pread(fd, vectors->iov_base, vectors->iov_len, offset) :
			      k_pwrite(fd, vectors->iov_base, vectors->iov_len, offset);
	if (!positioned)
		return read ? k_preadv(fd, vectors, count, offset) : k_pwritev(fd, vectors, count, offset);
	locked = !pthread_mutex_lock(&file->position);
	if (count == 1)
		got = read ? k_read(fd, vectors->iov_base, vectors->iov_len) :
			     k_write(fd, vectors->iov_base, vectors->iov_len);
	else
		got = read ? k_readv(fd, vectors, count) : k_writev(fd, vectors, count);
	if (locked)
		pthread_mutex_unlock(&file->position);
	return got;
}

static ssize_t plain(struct hy_file *file, enum hy_op op, const struct iovec *vectors, int count, off_t offset,
		     enum hy_reason reason)
{
	ssize_t got = by_kernel(file, op, vectors, count, offset);

	hy_count(file->by, op, reason, got > 0 ? (uint64_t)got : 0);
	if (got > 0)
		hy_passing(file, op, offset, (uint64_t)got);
	else if (got < 0)
		hy_count_error();
	return got;
}

static void moved(struct request *request, uint64_t bytes, enum hy_reason reason)
{
	hy_cursor_move(&request->at, bytes);
	request->offset += bytes;
	request->done += bytes;
	request->tally.bytes[reason] += bytes;
}

/* Transfers the next `bytes` through the page cache; false at the end of the file or on an error. */
static bool buffered(struct request *request, uint64_t bytes, enum hy_reason reason)
{
	int fd = request->file->fd, count;
	struct iovec slice[SLICE];

	while (bytes) {
		size_t part = hy_cursor_slice(&request->at, bytes, slice, SLICE, &count);
		ssize_t got = request->op == HY_READ ? k_preadv(fd, slice, count, (off_t)request->offset) :
						       k_pwritev(fd, slice, count, (off_t)request->offset);

		if (got < 0)
			request->failed = errno;
		if (got > 0)
			moved(request, (uint64_t)got, reason);
		if (got < (ssize_t)part)
			return false;
		bytes -= part;
	}
	return true;
}

/*
 * Returns the required alignment of memory. Reads need whole pages: before Linux 6.5, after a fork and a write of the
 * program to such a page, the device would continue to write to the old copy of the page (open(2), NOTES).
 */
static uint64_t memory_align(const struct hy_file *file, enum hy_op op)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return op == HY_READ && file->memory_align < page ? page : file->memory_align;
}

/* Returns how many of the next `bytes` can be transferred from or to the caller's memory at once, in whole blocks. */
static uint64_t in_place(const struct request *request, uint64_t bytes, struct iovec *slice, int *count)
{
	const struct hy_file *file = request->file;
	uint64_t align = memory_align(file, request->op), total = 0;
	struct hy_cursor at = request->at;

	if (request->op == HY_WRITE && file->copies)
		return 0;
	for (*count = 0; *count < ROWS && total < bytes; ++*count) {
		hy_cursor_move(&at, 0);	/* skip empty vectors */
		if (!at.count || (uint64_t)hy_cursor_here(&at) % align)
			break;
		uint64_t run = hy_cursor_run(&at), whole = hy_down(run < bytes - total ? run : bytes - total, file->direct_align);

		if (!whole)
			break;
		slice[*count] = (struct iovec){ hy_cursor_here(&at), whole };
		total += whole;
		hy_cursor_move(&at, whole);
		if (whole < run) {
			++*count;
			break;
		}
	}
	return total;
}

/* Makes one transfer of at most `bytes` on the direct descriptor; the bytes requested are in *part. */
static ssize_t transfer(struct request *request, int fd, uint64_t bytes, uint64_t *part)
{
	bool read = request->op == HY_READ;
	struct iovec slice[ROWS];
	ssize_t got;
	void *bounce;
	int count = 0;

	*part = in_place(request, bytes, slice, &count);
	if (*part && (*part == bytes || *part >= WORTH))
		return read ? k_preadv(fd, slice, count, (off_t)request->offset) :
			      k_pwritev(fd, slice, count, (off_t)request->offset);
	*part = bytes < HY_BOUNCE_BYTES ? bytes : HY_BOUNCE_BYTES;
	if (!hy_cursor_reachable(request->at, *part, read)) {
		errno = EFAULT;
		return -1;
	}
	bounce = hy_bounce_get();
	if (!bounce) {
		errno = ENOMEM;
		return -1;
	}
	if (read) {
		got = k_pread(fd, bounce, *part, (off_t)request->offset);
		if (got > 0)
			hy_cursor_copy(request->at, bounce, (size_t)got, true);
	} else {
		hy_cursor_copy(request->at, bounce, *part, false);
		got = k_pwrite(fd, bounce, *part, (off_t)request->offset);
	}
	if (got > 0)
		request->tally.bounced += (uint64_t)got;
	int failed = errno;

	hy_bounce_put(bounce);
	errno = failed;
	return got;
}

/*
 * Transfers the next `bytes`, a multiple of the alignment at an aligned offset. A refused direct request is repeated
 * buffered, also to get the short transfers that POSIX requires (ENOSPC, EFAULT); and so is a read that failed with EIO,
 * which may be the error of writing back another part of the file.
 */
static bool direct(struct request *request, uint64_t bytes, enum hy_reason reason)
{
	struct hy_file *file = request->file;
	int fd = hy_direct_get(file);

	while (bytes) {
		uint64_t part = 0;
		ssize_t got;

		if (fd < 0)
			return buffered(request, bytes, hy_flags(file) & HY_F_UNSUPPORTED ? HY_UNSUPPORTED : HY_REFUSED);
		got = transfer(request, fd, bytes, &part);
		if (got < 0) {
			switch (errno) {
			case EINVAL:
				hy_direct_refused(file);
				/* fall through */
			case EFAULT:
			case ENOMEM:
			case ENOSPC:
			case EDQUOT:
			case EOPNOTSUPP:
			case EBADF:	/* closed by the program meanwhile */
			refused:
				request->tally.refused++;
				return buffered(request, bytes, HY_REFUSED);
			case EIO:
				if (request->op == HY_READ)
					goto refused;
			}
			request->failed = errno;
			return false;
		}
		if (got)
			hy_direct_worked(file);
		moved(request, (uint64_t)got, reason);
		bytes -= (uint64_t)got;
		if ((uint64_t)got < part) {
			/* The end of the file, or a short transfer, as on network file systems. */
			if (request->op == HY_READ && request->offset >= request->file_bytes)
				return false;
			if (!got || request->offset % file->direct_align)
				return buffered(request, bytes, HY_REFUSED);
		}
	}
	return true;
}

/* Reads a range direct, except for parts in the cache, which are copied from there. */
static bool read_range(struct request *request, uint64_t bytes, enum hy_reason reason)
{
	struct hy_file *file = request->file;
	int64_t resident;

	if (reason == HY_CALLER || file->policy.mode == HY_ALWAYS_DIRECT)
		return direct(request, bytes, reason);
	resident = hy_resident(file->fd, request->offset, bytes, NULL);
	if (resident < 0 || (uint64_t)resident >= bytes)
		return buffered(request, bytes, HY_RESIDENT);
	if (!resident)
		return direct(request, bytes, reason);
	while (bytes) {
		uint64_t run = 0;
		bool here = false;

		while (run < bytes) {
			uint64_t part = bytes - run < PIECE ? bytes - run : PIECE;
			bool in = hy_resident(file->fd, request->offset + run, part, NULL) >= (int64_t)part;

			if (run && in != here)
				break;
			here = in;
			run += part;
		}
		if (!(here ? buffered(request, run, HY_RESIDENT) : direct(request, run, reason)))
			return false;
		bytes -= run;
	}
	return true;
}

/* Returns the reason of most bytes of the request, without its edges. */
static enum hy_reason main_part(const struct hy_tally *tally, enum hy_reason chosen)
{
	enum hy_reason most = chosen;

	for (int i = 0; i < HY_REASONS; i++)
		if (i != HY_EDGE && tally->bytes[i] > tally->bytes[most])
			most = (enum hy_reason)i;
	return most;
}

/* Whether the memory for the whole blocks of a request is aligned, so that it needs no copy. */
static bool aligned(const struct hy_file *file, const struct iovec *vectors, int count, uint64_t offset)
{
	struct hy_cursor at = { vectors, count, 0 };

	hy_cursor_move(&at, hy_up(offset, file->direct_align) - offset);
	return !at.count || (uint64_t)hy_cursor_here(&at) % memory_align(file, HY_READ) == 0;
}

/* Makes a large read whose pages stay in the cache, or are dropped after it (HY_PASSING). */
static ssize_t through_cache(struct hy_file *file, const struct iovec *vectors, int count, off_t offset, uint64_t at,
			     uint64_t bytes, uint64_t file_bytes, enum hy_reason reason)
{
	bool there = reason == HY_PASSING && hy_passing_before(file, at, bytes);
	ssize_t got = by_kernel(file, HY_READ, vectors, count, offset);

	if (there)
		reason = HY_RESIDENT;
	if (got <= 0) {
		hy_count(file->by, HY_READ, reason, 0);
		if (got)
			hy_count_error();
		return got;
	}
	if (reason == HY_PASSING) {
		hy_passing_stream(file, at, (uint64_t)got, file_bytes);
	} else if (there) {
		hy_history_note(file->inode, HY_NOTE_READ, at, (uint64_t)got, file_bytes, false);
	} else {
		hy_pressure_moved((uint64_t)got);
		hy_history_note(file->inode, HY_NOTE_KEPT, at, (uint64_t)got, file_bytes, true);
	}
	hy_count(file->by, HY_READ, reason, (uint64_t)got);
	return got;
}

static ssize_t cut(struct hy_file *file, enum hy_op op, const struct iovec *vectors, int count, uint64_t bytes,
		   uint64_t offset, uint64_t file_bytes, enum hy_reason reason)
{
	struct request request = { .file = file, .op = op, .at = { vectors, count, 0 }, .offset = offset,
				   .file_bytes = file_bytes };
	uint64_t align = file->direct_align, end = offset + bytes, first = hy_up(offset, align), last;
	int before = errno;
	bool on = true;

	/* A read to the end of the file requests whole blocks beyond it if the caller's memory suffices. */
	if (op == HY_READ && file_bytes < end) {
		end = hy_up(file_bytes, align) <= end ? hy_up(file_bytes, align) : file_bytes;
	}
	last = hy_down(end, align);
	if (first > offset)
		on = buffered(&request, first - offset, HY_EDGE);
	if (on && last > first)
		on = op == HY_READ ? read_range(&request, last - first, reason) : direct(&request, last - first, reason);
	if (on && end > last)
		buffered(&request, end - last, HY_EDGE);

	hy_count_tally(file->by, op, main_part(&request.tally, reason), &request.tally);
	hy_pressure_moved(request.done);
	if (op == HY_READ)
		hy_history_note(file->inode, HY_NOTE_READ, offset, request.done, file_bytes, false);
	if (request.done || !request.failed) {
		errno = before;
		return (ssize_t)request.done;
	}
	hy_count_error();
	errno = request.failed;
	return -1;
}

/* Whether a write exceeds RLIMIT_FSIZE: it must be one short request, since a second one would raise SIGXFSZ. */
static bool beyond_limit(uint64_t offset, uint64_t bytes)
{
	struct rlimit limit;

	return !syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, NULL, &limit) && limit.rlim_cur != RLIM_INFINITY &&
	       (offset >= limit.rlim_cur || bytes > limit.rlim_cur - offset);
}

/* Makes a request that may be direct. */
static ssize_t large(struct hy_file *file, enum hy_op op, const struct iovec *vectors, int count, uint64_t bytes,
		     off_t offset)
{
	bool positioned = offset == HY_POSITION, locked = false;
	int flags = k_getfl(file->fd), before = errno;
	struct hy_request request = { .op = op, .bytes = bytes };
	struct hy_pressure pressure;
	struct hy_choice choice;
	struct stat about;
	off_t at = offset;
	ssize_t got;

	if (flags < 0 || k_fstat(file->fd, &about) || about.st_dev != file->dev || about.st_ino != file->ino) {
		errno = before;
		return plain(file, op, vectors, count, offset, HY_OFF);
	}
	if (flags & O_DIRECT)	/* the caller's descriptor is direct already */
		return plain(file, op, vectors, count, offset, HY_CALLER);
	request.flags = hy_flags(file) & ~HY_F_APPEND;
	if (flags & O_APPEND)
		request.flags |= HY_F_APPEND;
	if (!positioned)
		request.flags &= ~HY_F_SHARED;
	request.file_bytes = (uint64_t)about.st_size;

	if (positioned) {
		locked = !pthread_mutex_lock(&file->position);
		at = locked ? k_lseek(file->fd, 0, SEEK_CUR) : -1;
		if (at < 0)
			request.flags |= HY_F_SHARED;	/* in a signal handler that interrupted its own thread's request */
	}
	if (at < 0 || at > INT64_MAX - (off_t)bytes) {
		at = 0;
		request.flags |= HY_F_SHARED;	/* the kernel returns the error */
	}
	if (op == HY_READ) {
		uint64_t left = about.st_size > at ? (uint64_t)(about.st_size - at) : 0;

		if (left < bytes)
			request.bytes = left;
		request.rest_bytes = left;
		if (left)
			request.reread_bytes = hy_history_reread(file->inode, (uint64_t)at, request.bytes);
	}
	hy_pressure_get(&file->policy, &pressure);
	choice = hy_choose(&file->policy, &request, &pressure);
	if (choice.way == HY_DIRECT && op == HY_WRITE && beyond_limit((uint64_t)at, bytes))
		choice = (struct hy_choice){ HY_BUFFERED, HY_REFUSED };
	if (choice.way == HY_DIRECT && hy_down((uint64_t)at + request.bytes, file->direct_align) <=
				       hy_up((uint64_t)at, file->direct_align))
		choice = (struct hy_choice){ HY_BUFFERED, HY_SMALL };	/* without a whole block */
	if (choice.way == HY_DIRECT && op == HY_READ && choice.reason != HY_CALLER && file->policy.mode == HY_AUTO &&
	    !aligned(file, vectors, count, (uint64_t)at))
		choice = (struct hy_choice){ HY_BUFFERED, HY_PASSING };
	if (choice.way == HY_DIRECT) {
		got = cut(file, op, vectors, count, bytes, (uint64_t)at, request.file_bytes, choice.reason);
		if (positioned && got > 0) {
			k_lseek(file->fd, at + got, SEEK_SET);
			hy_passing_seek(file, (uint64_t)(at + got));
		}
		if (locked)
			pthread_mutex_unlock(&file->position);
		return got;
	}
	if (locked)
		pthread_mutex_unlock(&file->position);
	if (choice.reason == HY_REREAD || choice.reason == HY_ROOM || choice.reason == HY_PASSING)
		return through_cache(file, vectors, count, offset, (uint64_t)at, request.bytes, request.file_bytes,
				     choice.reason);
	return plain(file, op, vectors, count, offset, choice.reason);
}

static ssize_t one(struct hy_file *file, enum hy_op op, void *data, size_t bytes, off_t offset)
{
	struct iovec vector = { data, bytes < HY_MOST ? bytes : HY_MOST };
	enum hy_reason reason;

	if (offset < 0 && offset != HY_POSITION) {
		hy_count_error();
		errno = EINVAL;
		return -1;
	}
	if (bytes > SSIZE_MAX)	/* the kernel rejects it */
		vector.iov_len = bytes;
	if (vector.iov_len < file->least || bytes > SSIZE_MAX) {
		reason = file->policy.mode == HY_ALWAYS_BUFFERED ? HY_OFF : HY_SMALL;
		return plain(file, op, &vector, 1, offset, reason);
	}
	return large(file, op, &vector, 1, vector.iov_len, offset);
}

ssize_t hy_read(struct hy_file *file, void *data, size_t bytes, off_t offset)
{
	return one(file, HY_READ, data, bytes, offset);
}

ssize_t hy_write(struct hy_file *file, const void *data, size_t bytes, off_t offset)
{
	return one(file, HY_WRITE, (void *)data, bytes, offset);
}

static ssize_t many(struct hy_file *file, enum hy_op op, const struct iovec *vectors, int count, off_t offset)
{
	size_t total = 0;

	if (offset < 0 && offset != HY_POSITION) {
		hy_count_error();
		errno = EINVAL;
		return -1;
	}
	/* The kernel rejects too many vectors and lengths that overflow. */
	for (int i = 0; count <= IOV_MAX && i < count; i++) {
		if (vectors[i].iov_len > (size_t)SSIZE_MAX - total) {
			total = 0;
			break;
		}
		total += vectors[i].iov_len;
	}
	if (total > HY_MOST)
		total = HY_MOST;
	if (total < file->least)
		return plain(file, op, vectors, count, offset, HY_SMALL);
	return large(file, op, vectors, count, total, offset);
}

ssize_t hy_readv(struct hy_file *file, const struct iovec *vectors, int count, off_t offset)
{
	return many(file, HY_READ, vectors, count, offset);
}

ssize_t hy_writev(struct hy_file *file, const struct iovec *vectors, int count, off_t offset)
{
	return many(file, HY_WRITE, vectors, count, offset);
}
