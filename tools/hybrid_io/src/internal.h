/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of the engine; not exported. */
#ifndef WHYSTALL_HYBRID_INTERNAL_H
#define WHYSTALL_HYBRID_INTERNAL_H

#include <errno.h>
#include <pthread.h>

#include "hybrid.h"
#include "kernel.h"

#define HY_MOST 0x7ffff000u	/* the kernel's own bound of one request, MAX_RW_COUNT */

static inline uint64_t hy_down(uint64_t value, uint64_t align)
{
	return value & ~(align - 1);
}

static inline uint64_t hy_up(uint64_t value, uint64_t align)
{
	return hy_down(value + align - 1, align);
}

static inline enum hy_way hy_way_of(enum hy_reason reason)
{
	return reason >= HY_CALLER ? HY_DIRECT : HY_BUFFERED;
}

struct hy_file;

/* Allocates zeroed pages. Not malloc(): a request may come from a signal handler that interrupted malloc(). */
static inline void *hy_memory(size_t bytes)
{
	void *memory = k_mmap(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

/* policy.c */
bool hy_policy_ok(const struct hy_policy *policy);
bool hy_under_pressure(const struct hy_policy *policy, const struct hy_pressure *pressure);

/* A descriptor of ours, which the program may close or replace: identified by its inode. */
struct hy_own_fd {
	int fd;			/* -1: none */
	dev_t dev;
	ino_t ino;
};

#define HY_FD_LEAST 500
int hy_own_fd_take(struct hy_own_fd *own, int fd, int least);	/* takes over fd in any case */
bool hy_own_fd_valid(const struct hy_own_fd *own);
void hy_own_fd_close(struct hy_own_fd *own);

/* counters.c */
struct hy_tally {			/* of one request */
	uint64_t bytes[HY_REASONS];
	uint64_t bounced;
	uint32_t refused;
};

void hy_count(struct hy_count (*file)[HY_REASONS], enum hy_op op, enum hy_reason reason, uint64_t bytes);
void hy_count_tally(struct hy_count (*file)[HY_REASONS], enum hy_op op, enum hy_reason reason, const struct hy_tally *tally);
void hy_count_error(void);
void hy_counters_forked(void);

static inline void hy_add(uint64_t *counter, uint64_t value)
{
	__atomic_fetch_add(counter, value, __ATOMIC_RELAXED);
}

/* pressure.c: the last known pressure, read again if it is too old for the policy. */
void hy_pressure_get(const struct hy_policy *policy, struct hy_pressure *pressure);
void hy_pressure_moved(uint64_t bytes);			/* so many bytes were transferred since */
void hy_pressure_forked(bool child);
void hy_pressure_before_fork(void);
uint64_t hy_now_ns(void);

/* bounce.c: aligned buffers for unaligned memory of callers. */
#define HY_BOUNCE_BYTES ((size_t)2 << 20)
void *hy_bounce_get(void);				/* NULL: no memory */
void hy_bounce_put(void *memory);
bool hy_reachable(const void *data, size_t bytes, bool write);	/* accessing it raises no signal */

/* history.c: use of files by this process, across close and open. All functions accept a NULL inode. */
struct hy_inode;
enum hy_note {
	HY_NOTE_READ,		/* read without adding it to the cache */
	HY_NOTE_KEPT,		/* read into the cache, to stay there */
	HY_NOTE_ONCE,		/* read into the cache in passing */
	HY_NOTE_STREAM,		/* the same of a file too large to stay: even if it was read before */
	HY_NOTE_WRITTEN,	/* written into the cache in passing */
};
struct hy_inode *hy_history_attach(const struct stat *about);
void hy_history_detach(struct hy_inode *inode);
uint64_t hy_history_reread(struct hy_inode *inode, uint64_t offset, uint64_t bytes);
void hy_history_note(struct hy_inode *inode, enum hy_note note, uint64_t offset, uint64_t bytes, uint64_t file_bytes,
		     bool ours);
void hy_history_survey(struct hy_inode *inode, int fd, uint64_t from, uint64_t to);
void hy_history_ahead(struct hy_inode *inode, uint64_t from, uint64_t to);
bool hy_history_foreign(struct hy_inode *inode, uint64_t offset, uint64_t bytes);
bool hy_history_droppable(struct hy_inode *inode, uint64_t most, uint64_t *offset, uint64_t *bytes);
void hy_history_again(struct hy_inode *inode, uint64_t offset, uint64_t bytes);
uint64_t hy_history_own(struct hy_inode *inode);
uint64_t hy_history_once(struct hy_inode *inode);
uint64_t hy_history_kept(void);
void hy_history_expire(void);
void hy_history_lock(void);				/* around fork */
void hy_history_unlock(void);

/* passing.c: requests that stream through the cache, and dropping their pages. */
struct hy_run {
	uint64_t small;		/* bytes transferred at the position since it was known */
	uint64_t known;		/* the position at that time */
	uint64_t start, end;	/* of successive requests with explicit offsets */
};
void hy_passing_start(struct hy_file *file, uint64_t position, uint64_t file_bytes);
void hy_passing_seek(struct hy_file *file, uint64_t position);
void hy_passing(struct hy_file *file, enum hy_op op, off_t offset, uint64_t bytes);
bool hy_passing_before(struct hy_file *file, uint64_t offset, uint64_t bytes);
void hy_passing_stream(struct hy_file *file, uint64_t offset, uint64_t bytes, uint64_t file_bytes);
void hy_passing_close(struct hy_file *file);

/* counters.c: extends a file to `bytes` and allocates them; false: no space */
bool hy_counters_room(int fd, size_t bytes);

/* residency.c */
int64_t hy_resident(int fd, uint64_t offset, uint64_t bytes, uint64_t *unclean);	/* -1: unknown */

/* A place in an array of buffers. */
struct hy_cursor {
	const struct iovec *vector;
	int count;
	size_t skip;			/* of the first */
};

void hy_cursor_move(struct hy_cursor *cursor, size_t bytes);
size_t hy_cursor_slice(const struct hy_cursor *cursor, size_t bytes, struct iovec *slice, int most, int *count);
void hy_cursor_copy(struct hy_cursor cursor, void *memory, size_t bytes, bool from_memory);
bool hy_cursor_reachable(struct hy_cursor cursor, size_t bytes, bool write);

static inline char *hy_cursor_here(const struct hy_cursor *cursor)
{
	return (char *)cursor->vector->iov_base + cursor->skip;
}

static inline size_t hy_cursor_run(const struct hy_cursor *cursor)
{
	return cursor->vector->iov_len - cursor->skip;
}

struct hy_file {
	int fd;				/* the caller's description, buffered */
	bool adopted;			/* fd belongs to the caller */
	uint32_t flags;			/* HY_F_*, atomic */
	int open_flags;
	dev_t dev;
	ino_t ino;
	struct hy_policy policy;
	size_t least;			/* smaller requests are always buffered */
	pthread_mutex_t position;	/* held while the position is in use */

	pthread_mutex_t opening;
	struct hy_own_fd direct;
	uint64_t direct_align, memory_align;
	bool copies;			/* written from private copies: the file system computes checksums */
	uint32_t unsupported_errno;
	uint32_t refused;		/* in a row */

	struct hy_inode *inode;		/* NULL: no history */
	struct hy_run runs[HY_OPS];
	bool streams;			/* has large reads that pass through the cache */
	uint64_t stream_end;		/* where the last of them ended */
	uint64_t inflow;		/* bytes read from the device for this file, less those passed */
	struct hy_count by[HY_OPS][HY_REASONS];
	struct hy_file *next, **link;	/* all files of the process */
};

static inline uint32_t hy_flags(const struct hy_file *file)
{
	return __atomic_load_n(&file->flags, __ATOMIC_ACQUIRE);
}

/* file.c */
bool hy_file_each_other(struct hy_file *except, bool (*visit)(struct hy_file *file));

/* direct.c */
int hy_direct_get(struct hy_file *file);	/* the direct descriptor, or -1 */
void hy_direct_refused(struct hy_file *file);
void hy_direct_worked(struct hy_file *file);
void hy_direct_close(struct hy_file *file);
void hy_direct_learn(struct hy_file *file, const struct stat *about);	/* alignment, at open */

#endif
