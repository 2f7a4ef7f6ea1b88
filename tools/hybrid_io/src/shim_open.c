/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Track descriptors that are opened, duplicated, closed, passed to other processes, locked and mapped.
 */
#include "shim.h"

#include <sys/prctl.h>
#include <sys/xattr.h>

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

/* Whether a call that failed for lack of descriptors can be retried, since some of ours were closed. */
static bool none_left(int fd)
{
	return fd < 0 && (errno == EMFILE || errno == ENFILE) && shim_active() && shim_make_room();
}

static int opened(int fd)
{
	int saved = errno;

	if (fd >= 0 && shim_active())
		shim_opened(fd);
	errno = saved;
	return fd;
}

static int open_at(int directory, const char *path, int flags, mode_t mode)
{
	int fd;

	do
		fd = shim_next.openat ? shim_next.openat(directory, path, flags, mode) :
					(int)syscall(SYS_openat, directory, path, flags, mode);
	while (none_left(fd));
	return opened(fd);
}

/* The mode is passed only if a file may be created; else the value read is arbitrary, and unused. */
#define MODE(flags)                                                                                                   \
	({                                                                                                            \
		mode_t given = 0;                                                                                     \
		if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) {                                        \
			va_list more;                                                                                 \
			va_start(more, flags);                                                                        \
			given = va_arg(more, mode_t);                                                                 \
			va_end(more);                                                                                 \
		}                                                                                                     \
		given;                                                                                                \
	})

SHIM_API int open(const char *path, int flags, ...)
{
	return open_at(AT_FDCWD, path, flags, MODE(flags));
}

SHIM_API int open64(const char *path, int flags, ...)
{
	return open_at(AT_FDCWD, path, flags, MODE(flags));
}

SHIM_API int openat(int directory, const char *path, int flags, ...)
{
	return open_at(directory, path, flags, MODE(flags));
}

SHIM_API int openat64(int directory, const char *path, int flags, ...)
{
	return open_at(directory, path, flags, MODE(flags));
}

SHIM_API int creat(const char *path, mode_t mode)
{
	return open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode);
}

SHIM_API int creat64(const char *path, mode_t mode)
{
	return open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode);
}

/* Called for open without a mode with -D_FORTIFY_SOURCE. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int directory, const char *path, int flags);
int __openat64_2(int directory, const char *path, int flags);

static int without_mode(int directory, const char *path, int flags)
{
	if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE)
		abort();	/* as libc does: the mode is missing */
	return open_at(directory, path, flags, 0);
}

SHIM_API int __open_2(const char *path, int flags)
{
	return without_mode(AT_FDCWD, path, flags);
}

SHIM_API int __open64_2(const char *path, int flags)
{
	return without_mode(AT_FDCWD, path, flags);
}

SHIM_API int __openat_2(int directory, const char *path, int flags)
{
	return without_mode(directory, path, flags);
}

SHIM_API int __openat64_2(int directory, const char *path, int flags)
{
	return without_mode(directory, path, flags);
}

static int temporary(char *name, int suffix, int flags)
{
	return opened(SHIM_CALL(mkostemps)(name, suffix, flags));
}

SHIM_API int mkstemp(char *name)
{
	return temporary(name, 0, 0);
}

SHIM_API int mkstemp64(char *name)
{
	return temporary(name, 0, 0);
}

SHIM_API int mkostemp(char *name, int flags)
{
	return temporary(name, 0, flags);
}

SHIM_API int mkostemp64(char *name, int flags)
{
	return temporary(name, 0, flags);
}

SHIM_API int mkstemps(char *name, int suffix)
{
	return temporary(name, suffix, 0);
}

SHIM_API int mkstemps64(char *name, int suffix)
{
	return temporary(name, suffix, 0);
}

SHIM_API int mkostemps(char *name, int suffix, int flags)
{
	return temporary(name, suffix, flags);
}

SHIM_API int mkostemps64(char *name, int suffix, int flags)
{
	return temporary(name, suffix, flags);
}

/* ---- closed ---- */

SHIM_API int close(int fd)
{
	int error = 0, done, saved;

	if ((unsigned int)fd < SHIM_DESCRIPTORS && (shim_descriptors[fd] || shim_boxes) && shim_active()) {
		if (shim_boxes && shim_is_ours(fd)) {	/* the program closes all numbers in a loop */
			errno = EBADF;
			return -1;
		}
		error = shim_forget(fd);
	}
	saved = errno;
	done = shim_next.close ? shim_next.close(fd) : k_close(fd);
	if (!done && error) {
		errno = saved;
		return -1;
	}
	return done;
}

SHIM_API int close_range(unsigned int first, unsigned int last, int flags)
{
	if (!flags && shim_active())
		shim_forget_range(first, last);
	return shim_next.close_range ? shim_next.close_range(first, last, flags) :
				       (int)syscall(436, first, last, flags);
}

SHIM_API void closefrom(int first)
{
	if (shim_active())
		shim_forget_range(first < 0 ? 0 : (unsigned int)first, ~0u);
	SHIM_CALL(closefrom)(first);
}

/* ---- copied ---- */

SHIM_API int dup(int fd)
{
	int made;

	do
		made = shim_next.dup ? shim_next.dup(fd) : (int)syscall(SYS_dup, fd);
	while (none_left(made));
	if (made >= 0) {
		if (shim_active())
			shim_copied(fd, made);
		else
			shim_share_position(fd);
	}
	return made;
}

static int dup_to(int from, int to, int flags, bool third)
{
	bool active = shim_active();
	int made;

	if (active && from != to) {
		shim_forget(to);
		if (shim_boxes && to >= 0)
			shim_forget_range((unsigned int)to, (unsigned int)to);	/* it may be one of ours */
	}
	if (third)
		made = SHIM_CALL(dup3)(from, to, flags);
	else
		made = SHIM_CALL(dup2)(from, to);
	if (made >= 0 && from != to) {
		if (active)
			shim_copied(from, to);
		else
			shim_share_position(from);	/* a child of vfork prepares descriptors for exec */
	}
	return made;
}

SHIM_API int dup2(int from, int to)
{
	return dup_to(from, to, 0, false);
}

SHIM_API int dup3(int from, int to, int flags)
{
	return dup_to(from, to, flags, true);
}

/* POSIX locks end when the process closes any descriptor of the file; a lease permits no other open of it. */
static void leave_alone(int fd)
{
	struct stat about;

	if (!k_fstat(fd, &about) && S_ISREG(about.st_mode))
		shim_leave_alone(&about, SHIM_LOCKED);
}

static int control(int fd, int command, void *argument)
{
	int saved = errno, done;

	if ((command == F_SETLK || command == F_SETLKW || command == F_SETLEASE) && shim_active())
		leave_alone(fd);
	errno = saved;
	do
		done = shim_next.fcntl ? shim_next.fcntl(fd, command, argument) :
					 (int)syscall(SYS_fcntl, fd, command, argument);
	while ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) && none_left(done));
	if (done < 0)
		return done;
	if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {
		if (shim_active())
			shim_copied(fd, done);
		else
			shim_share_position(fd);
	} else if (command == F_SETFL && (unsigned int)fd < SHIM_DESCRIPTORS && shim_active()) {
		shim_learn(fd);
	}
	return done;
}

/* The third argument is a number, a pointer, or missing: its register is passed on as it is. */
SHIM_API int fcntl(int fd, int command, ...)
{
	va_list more;
	void *argument;

	va_start(more, command);
	argument = va_arg(more, void *);
	va_end(more);
	return control(fd, command, argument);
}

SHIM_API int fcntl64(int fd, int command, ...)
{
	va_list more;
	void *argument;

	va_start(more, command);
	argument = va_arg(more, void *);
	va_end(more);
	return control(fd, command, argument);
}

SHIM_API int lockf(int fd, int command, off_t bytes)
{
	if (shim_active())
		leave_alone(fd);
	return SHIM_CALL(lockf)(fd, command, bytes);
}

SHIM_API int lockf64(int fd, int command, off64_t bytes)
{
	return lockf(fd, command, bytes);
}

/* ---- passed to another process, or taken from one ---- */

static void each_passed(const struct msghdr *message, void (*what)(int fd))
{
	struct cmsghdr *part;

	if (!message || !message->msg_control || !shim_active())
		return;
	for (part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR((struct msghdr *)(uintptr_t)message, part)) {
		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS || part->cmsg_len < CMSG_LEN(0))
			continue;
		for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
			int fd;

			__builtin_memcpy(&fd, CMSG_DATA(part) + at, sizeof(fd));
			what(fd);
		}
	}
}

static void received(int fd)
{
	shim_forget(fd);	/* what is known is of a descriptor closed without our notice */
}

SHIM_API ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	each_passed(message, shim_share_position);
	return shim_next.sendmsg ? shim_next.sendmsg(fd, message, flags) : syscall(SYS_sendmsg, fd, message, flags);
}

SHIM_API ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	ssize_t got = shim_next.recvmsg ? shim_next.recvmsg(fd, message, flags) :
					  syscall(SYS_recvmsg, fd, message, flags);

	if (got >= 0 && message->msg_controllen)
		each_passed(message, received);
	return got;
}

/* ---- mapped ---- */

static void *map(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	struct stat about;
	int saved = errno;

	/* Before the call, so that no direct request of another thread begins meanwhile. */
	if (fd >= 0 && !(flags & MAP_ANONYMOUS) && shim_active() && !k_fstat(fd, &about) && S_ISREG(about.st_mode) &&
	    (uint64_t)about.st_size >= shim.large)
		shim_leave_alone(&about, SHIM_MAPPED);
	errno = saved;
	if (shim_next.mmap)
		return shim_next.mmap(address, bytes, protection, flags, fd, offset);
	return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

SHIM_API void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	return map(address, bytes, protection, flags, fd, offset);
}

SHIM_API void *mmap64(void *address, size_t bytes, int protection, int flags, int fd, off64_t offset)
{
	return map(address, bytes, protection, flags, fd, offset);
}

/* ---- filtered ---- */

/*
 * A filter of system calls (seccomp) may kill a program for a call that it never made itself. It comes with one of
 * these, or by a system call of its own after the second.
 */
SHIM_API int prctl(int option, ...)
{
	unsigned long values[4];
	va_list more;

	va_start(more, option);
	for (int i = 0; i < 4; i++)
		values[i] = va_arg(more, unsigned long);
	va_end(more);
	if ((option == PR_SET_SECCOMP || option == PR_SET_NO_NEW_PRIVS) && shim_active())
		shim_stop();
	return (int)syscall(SYS_prctl, option, values[0], values[1], values[2], values[3]);
}
