/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the parts of the LD_PRELOAD shim. Only functions marked SHIM_API are exported.
 *
 * In doubt a call is passed to the next library unchanged. The shim stores no positions and no sizes, so that I/O that
 * bypasses it (C stdio, mmap, sendfile, other processes, raw system calls) cannot invalidate its state.
 */
#ifndef WHYSTALL_HYBRID_SHIM_H
#define WHYSTALL_HYBRID_SHIM_H

/* Both names of every call are defined here (open and open64): the headers must not rename or inline any. */
#undef _FILE_OFFSET_BITS
#undef _FORTIFY_SOURCE
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "hybrid.h"
#include "kernel.h"

#define SHIM_API __attribute__((visibility("default")))

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* For C libraries too old to declare them. */
int close_range(unsigned int first, unsigned int last, int flags);
void closefrom(int first);
int execveat(int directory, const char *path, char *const argv[], char *const envp[], int flags);

/*
 * The next definition of each name, found when the shim starts. Those of the first list may be called before that, by
 * constructors of other libraries and signal handlers: until then the system call itself is made.
 */
#define SHIM_NEXT(X)                                                                                                  \
	X(read) X(write) X(pread) X(pwrite) X(readv) X(writev) X(preadv) X(pwritev) X(preadv2) X(pwritev2)            \
	X(close) X(mmap) X(dup) X(dup2) X(dup3) X(fcntl) X(fsync) X(fdatasync) X(ftruncate) X(open) X(openat)         \
	X(sendfile) X(copy_file_range) X(splice) X(recvmsg) X(sendmsg) X(close_range)                                 \
	X(fopen) X(fdopen) X(freopen) X(fclose) X(fread) X(fwrite) X(tmpfile) X(popen) X(system) X(lockf)             \
	X(mkostemps) X(closefrom) X(_exit) X(_Exit) X(execve) X(execvpe) X(fexecve) X(execveat)                       \
	X(posix_spawn) X(posix_spawnp) X(posix_spawn_file_actions_adddup2)

struct shim_next {
#define X(name) __typeof__(name) *name;
	SHIM_NEXT(X)
#undef X
};
extern struct shim_next shim_next;

/* Names without an equivalent system call. */
void shim_resolve(void);
#define SHIM_CALL(name) (likely(shim_next.name) ? shim_next.name : (shim_resolve(), shim_next.name))

struct shim {
	uint64_t large;			/* smaller requests are never passed to the engine */
	struct hy_policy policy;
	int pid;			/* of the process whose tables these are */
	bool off;			/* switched off by the environment, or by a filter of system calls */
	bool follow;			/* also programs started with an environment of their own get the shim */
	bool pending;			/* it has no counter file yet */
	const char *library;		/* path of the shim in LD_PRELOAD */
	char folder[256];		/* of the counter files; "": none */
	char settings[2][512];		/* our variables at the start; "": none */
};
extern struct shim shim;

/* Nesting of this thread: within the shim, calls of signal handlers and libraries are passed on unchanged. */
struct shim_thread { uint32_t inside, stripe; };
extern __thread struct shim_thread shim_thread __attribute__((tls_model("initial-exec")));

/* False also in a child of vfork (or an unnoticed clone), which uses our memory with its own descriptors. */
static inline bool shim_active(void)
{
	return likely(!shim.off) && syscall(SYS_getpid) == shim.pid;
}

/* shim_count.c: counters of the shim, after struct hy_counters in the same file (tools/hybrid_io/report.py). */
#define SHIM_PAGE 4096			/* their offset in the file */
#define SHIM_STRIPES 16			/* threads use different stripes, to avoid contention for cache lines */
#define SHIM_MAGIC 0x3130304d49485359ull
struct shim_stripe {
	struct hy_count by[HY_OPS][HY_REASONS];
} __attribute__((aligned(64)));
struct shim_counters {
	uint64_t magic;
	uint32_t reasons, stripe_bytes;	/* for readers of the file */
	uint64_t known;			/* 1: the program ended, and `passed` is known */
	uint64_t ended;			/* in FOLDER/rest: programs that counted there */
	uint64_t passed[HY_OPS];	/* bytes counted by the kernel (rchar, wchar) that bypassed the shim */
	uint64_t copied_bytes;		/* sendfile, copy_file_range, splice: through the cache, within the kernel */
	uint64_t stdio_files;		/* opened through C stdio, or given to it */
	uint64_t stdio_requests;	/* large requests of C stdio passed to the engine */
	uint64_t execs;			/* programs started */
	uint64_t uncovered;		/* of these without the shim: static, setuid, of another C library, own environment */
	struct shim_stripe stripes[SHIM_STRIPES];
};
extern struct shim_counters *shim_counters;

void shim_count_start(void);
void shim_count_share(void);
void shim_count_forked(void);
void shim_count_final(void);		/* adds what is known only at the end; may be called repeatedly */
uint32_t shim_stripe(void);

static inline void shim_count(enum hy_op op, enum hy_reason reason, ssize_t bytes)
{
	uint32_t stripe = shim_thread.stripe;
	struct hy_count *count;

	if (unlikely(!stripe))
		stripe = shim_stripe();
	count = &shim_counters->stripes[stripe % SHIM_STRIPES].by[op][reason];
	__atomic_fetch_add(&count->requests, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&count->bytes, (uint64_t)bytes, __ATOMIC_RELAXED);
}

/* shim_table.c: state of descriptors, possibly outdated; verified before it is used for I/O. */
#define SHIM_DESCRIPTORS 65536
#define SHIM_CLASS 3u
enum shim_class { SHIM_UNKNOWN, SHIM_FILE, SHIM_OTHER, SHIM_DIRECT };	/* SHIM_DIRECT: a file with O_DIRECT */
#define SHIM_OWN 4u			/* opened by this program; its position is not shared */
extern uint8_t shim_descriptors[SHIM_DESCRIPTORS];
extern int shim_highest;

/* Files that the engine does not use, by inode. */
#define SHIM_MAPPED 1u
#define SHIM_LOCKED 2u			/* POSIX locks end when any descriptor of the file is closed: we must have none */

struct shim_box { struct hy_file *file; dev_t dev; ino_t ino; int fd; uint32_t users; bool used, retired; };

enum shim_class shim_learn(int fd);	/* examines the descriptor and stores its class */
void shim_opened(int fd);		/* by this program */
int shim_forget(int fd);		/* before it is closed; -1 and errno: an error that close() must return */
void shim_forget_range(unsigned int first, unsigned int last);
void shim_copied(int from, int to);	/* before `to` is replaced (or made) by dup */
void shim_share_position(int fd);
void shim_share_all(bool inheritable_only);
bool shim_is_ours(int fd);		/* a descriptor opened by the engine, unknown to the program */
bool shim_make_room(void);		/* closes descriptors of ours; false: there are none */
void shim_leave_alone(const struct stat *about, uint32_t why);
struct shim_box *shim_take(int fd, const struct stat *about, bool adopt, uint32_t *why);
void shim_put(struct shim_box *box);
void shim_table_forked(void);
void shim_stop(void);			/* for good */
extern int shim_boxes;			/* number of boxes ever used */

extern uint16_t shim_box_of[SHIM_DESCRIPTORS];	/* the number of its box plus one */

static inline bool shim_has_box(int fd)
{
	return (unsigned int)fd < SHIM_DESCRIPTORS && __atomic_load_n(&shim_box_of[fd], __ATOMIC_RELAXED);
}

static inline enum shim_class shim_class(int fd)
{
	enum shim_class known;

	if (unlikely((unsigned int)fd >= SHIM_DESCRIPTORS))
		return SHIM_OTHER;
	known = __atomic_load_n(&shim_descriptors[fd], __ATOMIC_RELAXED) & SHIM_CLASS;
	return likely(known) ? known : shim_learn(fd);
}

/* shim_large.c: requests passed to the engine. */
struct shim_request {
	int fd;
	enum hy_op op;
	const struct iovec *vectors;
	int count;
	size_t bytes;
	off_t offset;			/* HY_POSITION: at the position */
};
/* False: nothing was done; *why is the reason to count it under. */
bool shim_large(const struct shim_request *request, ssize_t *result, enum hy_reason *why);

/*
 * Small requests that stream through the cache are reported to the engine every SHIM_CHECK_BYTES, so that it can drop
 * their pages. With several threads the counts are inexact: then the engine detects no stream.
 */
#define SHIM_CHECK_BYTES (8u << 20)
struct shim_stream { uint64_t moved[HY_OPS], start, end; };
extern struct shim_stream shim_streams[SHIM_DESCRIPTORS];
void shim_look(int fd, enum hy_op op, off_t offset, uint64_t bytes);

static inline void shim_passed(int fd, enum hy_op op, off_t offset, ssize_t bytes)
{
	struct shim_stream *stream = &shim_streams[fd];
	uint64_t before;

	if (offset == HY_POSITION) {
		before = __atomic_load_n(&stream->moved[op], __ATOMIC_RELAXED) + (uint64_t)bytes;
		__atomic_store_n(&stream->moved[op], before, __ATOMIC_RELAXED);
		if (unlikely(before >= SHIM_CHECK_BYTES))
			shim_look(fd, op, HY_POSITION, before);
		return;
	}
	before = __atomic_load_n(&stream->start, __ATOMIC_RELAXED);
	if (__atomic_load_n(&stream->end, __ATOMIC_RELAXED) != (uint64_t)offset) {
		before = (uint64_t)offset;
		__atomic_store_n(&stream->start, before, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&stream->end, (uint64_t)offset + (uint64_t)bytes, __ATOMIC_RELAXED);
	if (unlikely((uint64_t)offset + (uint64_t)bytes - before >= SHIM_CHECK_BYTES))
		shim_look(fd, op, (off_t)before, (uint64_t)offset + (uint64_t)bytes - before);
}

int shim_sync(int fd, bool data_only, int (*next)(int fd));
int shim_truncate(int fd, off_t bytes);

/* Blocks signals while the engine works: no handler may find its locks taken or a position half moved. */
void shim_enter(sigset_t *before);
void shim_leave(const sigset_t *before);

void shim_overrun(void) __attribute__((noreturn));	/* ends the program as libc does after a buffer overflow */

/* shim_process.c */
void shim_started(void);

#endif
