/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hybrid I/O: per request buffered or direct, by size and memory pressure.
 *
 * One policy (policy.c), one engine (engine.c, counters.c), used in two ways: by Python through ctypes
 * (libwhystall_hybrid.so, hybrid_file.py) and by unmodified programs through LD_PRELOAD
 * (libwhystall_hybrid_preload.so, shim.c). tools/hybrid_io/layout.py mirrors every struct of this file; a test
 * compares their sizes through hy_sizes().
 *
 * Conventions: as system calls, -1 and errno, or the number of bytes, which may be short. Nothing here allocates on a
 * path that a small request takes, raises signals, prints, or leaves errno changed on success. Safe for threads.
 */
#ifndef WHYSTALL_HYBRID_H
#define WHYSTALL_HYBRID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifndef HY_API	/* the preloaded library does not export its engine */
#define HY_API __attribute__((visibility("default")))
#endif
#define HY_ABI 1

enum hy_way { HY_BUFFERED, HY_DIRECT, HY_WAYS };

enum hy_op { HY_READ, HY_WRITE, HY_OPS };

/* Why a request was buffered or direct. layout.py has the names, in this order. */
enum hy_reason {
	/* buffered */
	HY_SMALL,		/* too small for direct I/O */
	HY_RESIDENT,		/* a read whose pages are in the cache: copied from there */
	HY_REREAD,		/* read before and it fits below the limit: kept in the cache */
	HY_ROOM,		/* a read of a file that is small compared with the free space of the cache: kept from the first read on */
	HY_PASSING,		/* a read into unaligned memory: through the cache, then dropped from it */
	HY_EDGE,		/* the unaligned head or tail of a request whose middle went direct */
	HY_UNSUPPORTED,		/* the file system, or the kind of file, cannot do direct I/O */
	HY_APPEND,		/* O_APPEND: only the kernel knows where it will be written */
	HY_SHARED,		/* the file position is shared with another process (fork) */
	HY_MAPPED,		/* this process has the file mapped */
	HY_REFUSED,		/* the kernel refused this direct request (EINVAL); done buffered instead */
	HY_OFF,			/* the engine is switched off, or does not know this descriptor */
	/* direct */
	HY_CALLER,		/* the caller opened it with O_DIRECT */
	HY_SIZE,		/* at or above the threshold */
	HY_PRESSURE,		/* the cache is at its limit: smaller requests go direct too */
	HY_REASONS
};

/* Settings; hy_policy_default() fills in the defaults. All sizes in bytes. */
struct hy_policy {
	uint32_t abi;			/* HY_ABI */
	uint32_t mode;			/* enum hy_mode */
	uint64_t read_direct_bytes;	/* at or above: direct */
	uint64_t write_direct_bytes;
	uint64_t pressure_direct_bytes;	/* under pressure: at or above this, direct */
	double limit_share;		/* of min(cgroup limit, memory): what the cache may hold; 0.80 */
	double direct_share;		/* of that limit: from here on direct; 0.95 */
	uint64_t limit_bytes;		/* the limit itself; 0: by limit_share */
	uint64_t refresh_ns;		/* maximum age of the known pressure */
	uint64_t refresh_bytes;		/* and most bytes transferred since */
	uint32_t keep_reread;		/* 1: data that is read again, and fits, stays buffered */
	uint32_t pad;
	uint64_t keep_file_bytes;	/* files up to this that fit in half of the free space are read buffered; 0: none */
};

/* HY_AUTO: by the policy. The other two, for measuring: every request, if possible. */
enum hy_mode { HY_AUTO, HY_ALWAYS_BUFFERED, HY_ALWAYS_DIRECT };

/* Input of hy_choose(), a pure function: no system call, no state. */
struct hy_request {
	uint32_t op;			/* enum hy_op */
	uint32_t flags;			/* HY_F_* */
	uint64_t bytes;
	uint64_t file_bytes;		/* size of the file */
	uint64_t reread_bytes;		/* of this request: bytes read before by this process */
	uint64_t rest_bytes;		/* of the file: from the start of this request to its end */
};
#define HY_F_CALLER_DIRECT	1u	/* opened with O_DIRECT */
#define HY_F_UNSUPPORTED	2u
#define HY_F_APPEND		4u
#define HY_F_SHARED		8u
#define HY_F_MAPPED		16u

struct hy_pressure {
	uint64_t limit_bytes;		/* limit_share x (min(cgroup limit, memory) - other), or the policy's */
	uint64_t cgroup_limit_bytes;	/* the smallest of the cgroup and its ancestors; UINT64_MAX: none */
	uint64_t memory_bytes;
	uint64_t cached_bytes;		/* file pages of the cgroup (of the host, where it has no limit) */
	uint64_t active_bytes;		/* of these, used more than once recently (the kernel's active list) */
	uint64_t other_bytes;		/* other memory, which cannot be reclaimed as cache: anonymous, kernel, shmem */
	uint64_t own_bytes;		/* kept in the cache by this engine and not yet used again (so not active) */
	uint64_t read_at_ns;
	uint32_t cgroup_version;	/* 0: no memory cgroup, values of the host */
	uint32_t pad;
};

struct hy_choice { uint32_t way, reason; };

HY_API void hy_policy_default(struct hy_policy *policy);
HY_API struct hy_choice hy_choose(const struct hy_policy *policy, const struct hy_request *request,
				  const struct hy_pressure *pressure);

/*
 * Counters of one process: requests and bytes by operation and reason. Written with atomics, into a file mapped shared if
 * one was given, so that they outlive a process that is killed.
 * Every request that moved bytes, met the end of the file or failed counts once, under the reason of its main part
 * (HY_EDGE counts none); bytes count under the reason of the part that moved them.
 */
struct hy_count { uint64_t requests, bytes; };
struct hy_counters {
	uint64_t magic, abi, pid, start_ns;
	char program[64];
	struct hy_count by[HY_OPS][HY_REASONS];
	uint64_t files;			/* files used by the engine */
	uint64_t dropped_bytes;		/* cached pages dropped (posix_fadvise DONTNEED) to stay under the limit */
	uint64_t pressure_reads;	/* how often the pressure was read */
	uint64_t bounced_bytes;		/* copied through an aligned buffer, since the caller's was not */
	uint64_t fallbacks;		/* direct requests that the kernel refused */
	uint64_t errors;		/* errors returned to the caller */
	uint64_t stdio_files;		/* files opened through C stdio, whose buffered requests the engine does not get */
	uint64_t spare[8];
};

/* One file. `path` as open(2); with O_DIRECT in `flags` every request is direct if possible. */
struct hy_file;
HY_API struct hy_file *hy_open(const char *path, int flags, mode_t mode, const struct hy_policy *policy);
/* Uses a descriptor of the caller, who closes it. */
HY_API struct hy_file *hy_adopt(int fd, const struct hy_policy *policy);
HY_API int hy_close(struct hy_file *file);	/* returns the first pending error; frees in any case */
HY_API int hy_fileno(const struct hy_file *file);
/*
 * Positions: offset HY_POSITION (-1) uses and moves the file's own position (that of the descriptor); other negative
 * offsets are EINVAL. As in the kernel, one request moves at most 0x7ffff000 bytes, and a larger one is cut to that.
 */
#define HY_POSITION ((off_t)-1)
HY_API ssize_t hy_read(struct hy_file *file, void *data, size_t bytes, off_t offset);
HY_API ssize_t hy_write(struct hy_file *file, const void *data, size_t bytes, off_t offset);
HY_API ssize_t hy_readv(struct hy_file *file, const struct iovec *vectors, int count, off_t offset);
HY_API ssize_t hy_writev(struct hy_file *file, const struct iovec *vectors, int count, off_t offset);
HY_API off_t hy_seek(struct hy_file *file, off_t offset, int whence);
HY_API int hy_truncate(struct hy_file *file, off_t bytes);
HY_API int hy_sync(struct hy_file *file, int data_only);
/* Events that change what is safe. */
HY_API void hy_mark(struct hy_file *file, uint32_t flags);	/* HY_F_SHARED, HY_F_MAPPED */

/* Properties and counters of a file. */
struct hy_status {
	uint64_t direct_align, memory_align;	/* bytes; 0: direct I/O is not possible */
	uint64_t cached_bytes;			/* resident pages of the file (cachestat(2), else an estimate) */
	uint64_t own_bytes;			/* put there by this engine, not yet dropped */
	uint32_t flags;				/* HY_F_* */
	uint32_t unsupported_errno;		/* why direct I/O is not possible */
	struct hy_count by[HY_OPS][HY_REASONS];
};
HY_API int hy_status(const struct hy_file *file, struct hy_status *status);

/* This process. */
HY_API void hy_pressure_now(struct hy_pressure *pressure);	/* reads it now */
HY_API struct hy_counters *hy_counters(void);
HY_API int hy_counters_share(const char *path);	/* from now on in this file, mapped shared */
HY_API void hy_sizes(uint32_t *sizes, uint32_t count);	/* of: policy, request, pressure, choice, counters, status */

#endif
