/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C stdio. Its calls of read and write stay within the C library: files opened through it are counted, and their bytes are
 * reported as passed. But large fread() and fwrite(), by which NumPy and PyTorch transfer arrays, bypass the stream's
 * buffer anyway; they are passed to the engine by the rules of POSIX for using a stream's descriptor (2.5.1, Interaction of
 * File Descriptors and Standard I/O Streams): fflush() moves the descriptor to the stream's position, and fseeko() the
 * stream to the descriptor's afterwards. Unusual streams are left to the C library.
 */
#include "shim.h"

#include <pthread.h>
#include <stdio_ext.h>
#include <wchar.h>

static FILE *counted(FILE *stream)
{
	int saved = errno;

	if (stream && shim_active()) {
		int fd = fileno(stream);

		if (fd >= 0) {
			shim_opened(fd);
			__atomic_fetch_add(&shim_counters->stdio_files, 1, __ATOMIC_RELAXED);
		}
	}
	errno = saved;
	return stream;
}

SHIM_API FILE *fopen(const char *path, const char *mode)
{
	return counted(SHIM_CALL(fopen)(path, mode));
}

SHIM_API FILE *fopen64(const char *path, const char *mode)
{
	return counted(SHIM_CALL(fopen)(path, mode));
}

SHIM_API FILE *tmpfile(void)
{
	return counted(SHIM_CALL(tmpfile)());
}

SHIM_API FILE *tmpfile64(void)
{
	return counted(SHIM_CALL(tmpfile)());
}

/* fdopen: the descriptor is open already, and shares its position as before. */
SHIM_API FILE *fdopen(int fd, const char *mode)
{
	FILE *stream = SHIM_CALL(fdopen)(fd, mode);

	if (stream && shim_active())
		__atomic_fetch_add(&shim_counters->stdio_files, 1, __ATOMIC_RELAXED);
	return stream;
}

static FILE *reopened(const char *path, const char *mode, FILE *stream)
{
	int fd = fileno(stream);

	if (fd >= 0 && path && shim_active())
		shim_forget(fd);
	stream = SHIM_CALL(freopen)(path, mode, stream);
	return path ? counted(stream) : stream;
}

SHIM_API FILE *freopen(const char *path, const char *mode, FILE *stream)
{
	return reopened(path, mode, stream);
}

SHIM_API FILE *freopen64(const char *path, const char *mode, FILE *stream)
{
	return reopened(path, mode, stream);
}

SHIM_API int fclose(FILE *stream)
{
	int fd = !shim.off ? fileno(stream) : -1, error = 0, failed = 0, done;

	if (fd >= 0 && shim_active()) {
		error = shim_forget(fd);
		failed = errno;
	}
	done = SHIM_CALL(fclose)(stream);
	if (!done && error) {
		errno = failed;
		return EOF;
	}
	return done;
}

#ifdef __GLIBC__

/* Whether the stream's descriptor may be used: bytes, the usual buffering, no error. */
static int descriptor(FILE *stream, enum hy_op op)
{
	int fd = fileno_unlocked(stream);

	if (fd < 0 || ferror_unlocked(stream) || fwide(stream, 0) > 0 || shim_class(fd) != SHIM_FILE)
		return -1;
	if (!(shim_descriptors[fd] & SHIM_OWN))
		return -1;
	return (op == HY_READ ? __freadable(stream) && !__fwriting(stream) : __fwritable(stream) && !__freading(stream)) ?
		       fd :
		       -1;
}

/* Returns the bytes in a reader's buffer, ungetc() included; the layout is part of the library's ABI. */
static size_t ahead(const FILE *stream)
{
	const int in_backup = 0x100;	/* _IO_IN_BACKUP: characters of ungetc() precede the buffer */
	size_t bytes = (size_t)(stream->_IO_read_end - stream->_IO_read_ptr);

	if (stream->_flags & in_backup)
		bytes += (size_t)(stream->_IO_save_end - stream->_IO_save_base);
	return bytes;
}

/* Transfers whole items of `size`; returns the bytes transferred. The C library does the rest and reports errors. */
static size_t take_over(FILE *stream, enum hy_op op, char *data, size_t bytes)
{
	size_t done = 0, buffered;
	int fd = descriptor(stream, op), saved = errno;
	enum hy_reason why;
	off_t at;

	if (fd < 0)
		return 0;
	if (op == HY_READ) {
		buffered = ahead(stream);
		if (buffered >= bytes || bytes - buffered < shim.large)
			return 0;
		if (buffered)
			done = SHIM_CALL(fread)(data, 1, buffered, stream);
		if (done < buffered)
			return done;
	}
	if (fflush_unlocked(stream))
		return done;
	while (bytes - done >= shim.large) {
		const struct iovec rest = { data + done, bytes - done };
		const struct shim_request request = { fd, op, &rest, 1, bytes - done, HY_POSITION };
		ssize_t got;

		if (!shim_large(&request, &got, &why) || got <= 0)
			break;
		__atomic_fetch_add(&shim_counters->stdio_requests, 1, __ATOMIC_RELAXED);
		done += (size_t)got;
	}
	at = k_lseek(fd, 0, SEEK_CUR);
	if (at >= 0)
		fseeko(stream, at, SEEK_SET);
	errno = saved;
	return done;
}

/* Signals are not blocked throughout, as in the C library, which has the stream's lock. */
static size_t large(FILE *stream, enum hy_op op, char *data, size_t bytes)
{
	size_t done;
	int before;

	/* A thread that is cancelled here would leave the stream locked. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	flockfile(stream);
	done = take_over(stream, op, data, bytes);
	if (done < bytes)
		done += op == HY_READ ? SHIM_CALL(fread)(data + done, 1, bytes - done, stream) :
					SHIM_CALL(fwrite)(data + done, 1, bytes - done, stream);
	funlockfile(stream);
	pthread_setcancelstate(before, NULL);
	return done;
}

static bool is_large(size_t size, size_t count, size_t *bytes)
{
	return unlikely(!__builtin_mul_overflow(size, count, bytes) && *bytes >= shim.large && !shim_thread.inside);
}

SHIM_API size_t fread(void *data, size_t size, size_t count, FILE *stream)
{
	size_t bytes;

	if (is_large(size, count, &bytes))
		return large(stream, HY_READ, data, bytes) / size;
	return SHIM_CALL(fread)(data, size, count, stream);
}

/* Called for fread with -D_FORTIFY_SOURCE. */
size_t __fread_chk(void *data, size_t room, size_t size, size_t count, FILE *stream);

SHIM_API size_t __fread_chk(void *data, size_t room, size_t size, size_t count, FILE *stream)
{
	size_t bytes;

	if (__builtin_mul_overflow(size, count, &bytes) || bytes > room)
		shim_overrun();
	return fread(data, size, count, stream);
}

SHIM_API size_t fwrite(const void *data, size_t size, size_t count, FILE *stream)
{
	size_t bytes;

	if (is_large(size, count, &bytes))
		return large(stream, HY_WRITE, (char *)(uintptr_t)data, bytes) / size;
	return SHIM_CALL(fwrite)(data, size, count, stream);
}

#endif
