/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes a large request on a regular file to the engine.
 *
 * Positions. Two threads that read() one description get different ranges, since the kernel holds f_pos_lock during a call.
 * A direct request is several calls, so its range is claimed first: lseek(fd, bytes, SEEK_CUR) moves the position past it
 * atomically, under the same lock. The range is then read or written at its offset, and lseek() backwards returns the part
 * not transferred. Relative steps are correct in any order, so no lock of ours is needed, also towards small requests,
 * lseek() and duplicates. Another process may see the position before a step back: requests at shared positions are left
 * to the kernel.
 *
 * Signals are blocked meanwhile, as during a system call on a file, except those raised by faults of the program's memory.
 */
#include <limits.h>
#include <string.h>

#include "shim.h"
#include "internal.h"

#define MOST 0x7ffff000u	/* the kernel truncates longer requests */

void shim_enter(sigset_t *before)
{
	/* Not by libc, which never blocks the signals by which it cancels threads and changes user ids. */
	uint64_t all = ~(uint64_t)0;

	all &= ~(1ull << (SIGSEGV - 1) | 1ull << (SIGBUS - 1) | 1ull << (SIGILL - 1) | 1ull << (SIGFPE - 1) |
		 1ull << (SIGTRAP - 1) | 1ull << (SIGSYS - 1));
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, before, sizeof(all));
	shim_thread.inside++;
}

void shim_leave(const sigset_t *before)
{
	shim_thread.inside--;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, before, NULL, sizeof(uint64_t));
}

static ssize_t move(struct hy_file *file, const struct shim_request *request, size_t bytes, off_t offset)
{
	const struct iovec *vectors = request->vectors;

	if (request->count == 1)
		return request->op == HY_READ ? hy_read(file, vectors->iov_base, bytes, offset)
					      : hy_write(file, vectors->iov_base, bytes, offset);
	return request->op == HY_READ ? hy_readv(file, vectors, request->count, offset)
				      : hy_writev(file, vectors, request->count, offset);
}

static bool at_position(struct hy_file *file, const struct shim_request *request, off_t size, ssize_t *result)
{
	int fd = request->fd, failed;
	size_t bytes = request->bytes < MOST ? request->bytes : MOST;
	off_t start = k_lseek(fd, 0, SEEK_CUR), end;
	ssize_t got;

	if (start < 0)
		return false;
	if (request->op == HY_READ) {
		/* Claim nothing beyond the end: no other thread may see the position there. */
		if (start >= size)
			return false;
		if ((off_t)bytes > size - start) {
			bytes = (size_t)(size - start);
			if (bytes < shim.large || request->count != 1)
				return false;
		}
	}
	end = k_lseek(fd, (off_t)bytes, SEEK_CUR);
	if (end < 0)
		return false;
	/* Another thread moved it first, or the file has no position (noop_llseek). */
	if (end < start + (off_t)bytes || (request->op == HY_READ && end > size)) {
		k_lseek(fd, -(off_t)bytes, SEEK_CUR);
		return false;
	}
	start = end - (off_t)bytes;
	got = move(file, request, bytes, start);
	failed = errno;
	if (got < (ssize_t)bytes)
		k_lseek(fd, (got > 0 ? got : 0) - (off_t)bytes, SEEK_CUR);
	errno = failed;
	*result = got;
	return true;
}

static bool guarded(const struct shim_request *request, ssize_t *result, enum hy_reason *why)
{
	struct stat about;
	struct shim_box *box;
	uint32_t alone = 0;
	int flags;
	bool done = true;

	if (shim.pending)
		shim_count_share();
	*why = HY_OFF;
	if (k_fstat(request->fd, &about) || (flags = k_getfl(request->fd)) < 0)
		return false;
	if (!S_ISREG(about.st_mode) || flags & O_PATH) {
		*why = HY_UNSUPPORTED;
		return false;
	}
	if ((flags & O_ACCMODE) == (request->op == HY_READ ? O_WRONLY : O_RDONLY))
		return false;	/* EBADF */
	if (flags & O_DIRECT)
		*why = HY_CALLER;
	else if (request->op == HY_WRITE && flags & O_APPEND)
		*why = HY_APPEND;
	else if (request->offset == HY_POSITION && !(shim_descriptors[request->fd] & SHIM_OWN))
		*why = HY_SHARED;
	else
		*why = HY_REASONS;
	if (*why != HY_REASONS)
		return false;
	box = shim_take(request->fd, &about, true, &alone);
	if (!box) {
		*why = alone & SHIM_MAPPED ? HY_MAPPED : HY_OFF;
		return false;
	}
	if (__atomic_load_n(&box->file->flags, __ATOMIC_RELAXED) & HY_F_UNSUPPORTED) {
		*why = HY_UNSUPPORTED;	/* also files of /proc and /sys */
		shim_put(box);
		return false;
	}
	if (request->offset == HY_POSITION)
		done = at_position(box->file, request, about.st_size, result);
	else
		*result = move(box->file, request, request->bytes, request->offset);
	if (!done)
		*why = HY_SMALL;	/* met the end of the file */
	flags = errno;
	shim_put(box);
	errno = flags;
	return done;
}

bool shim_large(const struct shim_request *request, ssize_t *result, enum hy_reason *why)
{
	sigset_t before;
	int saved = errno, failed;
	bool done;

	*why = HY_OFF;
	if ((unsigned int)request->fd >= SHIM_DESCRIPTORS || request->bytes > SSIZE_MAX || shim_thread.inside ||
	    !shim_active())
		return false;
	pthread_testcancel();	/* these calls are cancellation points; nothing after this line is */
	shim_enter(&before);
	done = guarded(request, result, why);
	failed = errno;
	shim_leave(&before);
	errno = done && *result < 0 ? failed : saved;
	return done;
}

void shim_look(int fd, enum hy_op op, off_t offset, uint64_t bytes)
{
	struct shim_box *box;
	struct stat about;
	sigset_t before;
	uint32_t alone;
	int saved = errno, flags;

	shim_streams[fd].moved[op] = 0;
	shim_streams[fd].start = shim_streams[fd].end;
	if (shim_thread.inside || shim.policy.mode == HY_ALWAYS_BUFFERED || !shim_active())
		return;
	if (offset == HY_POSITION && !(shim_descriptors[fd] & SHIM_OWN))
		return;
	shim_enter(&before);
	flags = k_getfl(fd);
	if (flags >= 0 && !(flags & (O_DIRECT | O_PATH)) && !k_fstat(fd, &about) && S_ISREG(about.st_mode)) {
		if (shim.pending)
			shim_count_share();
		box = shim_take(fd, &about, true, &alone);
		if (box) {
			hy_passing(box->file, op, offset, bytes);
			shim_put(box);
		}
	}
	shim_leave(&before);
	errno = saved;
}

/*
 * The engine only counts errors of these calls. No lock is held during them: a signal handler may close the descriptor
 * meanwhile, or never return (siglongjmp).
 */
static int count_failure(int fd, int done)
{
	if (done < 0 && shim_has_box(fd))
		hy_count_error();
	return done;
}

int shim_sync(int fd, bool data_only, int (*next)(int fd))
{
	return count_failure(fd, next ? next(fd) : data_only ? k_fdatasync(fd) : k_fsync(fd));
}

int shim_truncate(int fd, off_t bytes)
{
	return count_failure(fd, shim_next.ftruncate ? shim_next.ftruncate(fd, bytes) : k_ftruncate(fd, bytes));
}
