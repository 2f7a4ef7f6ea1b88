/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of the shim, in private memory or after the engine's counters in a file mapped shared. */
#include <string.h>

#include "internal.h"
#include "shim.h"

#include <sys/resource.h>

#define ACCOUNT 512		/* bytes; /proc/self/io is shorter */

#define EMPTY { .magic = SHIM_MAGIC, .reasons = HY_REASONS, .stripe_bytes = sizeof(struct shim_stripe) }

static struct shim_counters own = EMPTY;
struct shim_counters *shim_counters = &own;

static uint64_t before[HY_OPS];	/* the kernel's counts when the program began, and bytes reported since */
static bool before_known;
static uint32_t threads;

/* Assigns stripes to threads in turn, from 1 on. */
uint32_t shim_stripe(void)
{
	shim_thread.stripe = 1 + __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED) % SHIM_STRIPES;
	return shim_thread.stripe;
}

static uint64_t number_after(const char *text, const char *name)
{
	const char *at = strstr(text, name);
	uint64_t number = 0;

	if (at)
		for (at += strlen(name); *at >= '0' && *at <= '9'; at++)
			number = number * 10 + (uint64_t)(*at - '0');
	return number;
}

/*
 * Reads how many bytes all system calls of this process read and wrote. False if that is unknown, or if it waited for a
 * child, whose bytes the kernel adds to its parent's.
 */
static bool account(uint64_t moved[HY_OPS])
{
	char text[ACCOUNT];
	struct rusage children;

	if (syscall(SYS_getrusage, RUSAGE_CHILDREN, &children) || children.ru_maxrss)
		return false;
	int fd = k_open("/proc/self/io", O_RDONLY | O_CLOEXEC, 0);
	ssize_t got = fd < 0 ? -1 : k_read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		k_close(fd);
	if (got <= 0)
		return false;
	text[got] = '\0';
	moved[HY_READ] = number_after(text, "rchar: ");
	moved[HY_WRITE] = number_after(text, "wchar: ");
	return true;
}

void shim_count_start(void)
{
	shim.pending = shim.folder[0] != '\0';
	before_known = account(before);
}

static char *put_number(char *at, uint64_t number)
{
	char digits[24];
	int count = 0;

	do
		digits[count++] = (char)('0' + number % 10);
	while (number /= 10);
	while (count)
		*at++ = digits[--count];
	return at;
}

/*
 * Opens a file in the folder, if that belongs to us alone: after the run another user may have created a folder of the
 * same name, with links to files that must not be written.
 */
static int open_counters(const char *name, int flags)
{
	struct stat about;
	int fd = -1, folder = k_open(shim.folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);

	if (folder < 0)
		return -1;
	if (!k_fstat(folder, &about) && about.st_uid == (uid_t)syscall(SYS_geteuid) &&
	    !(about.st_mode & (S_IWGRP | S_IWOTH)))
		fd = (int)syscall(SYS_openat, folder, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, 0600);
	k_close(folder);
	return fd;
}

static struct shim_counters *map_shared(const char *name, int flags)
{
	struct shim_counters *shared = MAP_FAILED;
	int fd = open_counters(name, flags);

	if (fd < 0)
		return MAP_FAILED;
	if (hy_counters_room(fd, SHIM_PAGE + sizeof(*shared)))
		shared = k_mmap(sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, SHIM_PAGE);
	k_close(fd);
	return shared;
}

/*
 * Creates a file for this program, FOLDER/PID-NANOSECONDS, at its first large request: most programs make none. Without
 * space it counts in private memory, and adds its counts to FOLDER/rest at its end.
 */
void shim_count_share(void)
{
	char path[sizeof(shim.folder) + 64], *name = path + strlen(shim.folder) + 1, *at = name;
	struct shim_counters *shared;
	int saved = errno;

	shim.pending = false;
	memcpy(path, shim.folder, strlen(shim.folder));
	name[-1] = '/';
	at = put_number(at, (uint64_t)shim.pid);
	*at++ = '-';
	*put_number(at, hy_counters()->start_ns) = '\0';
	shared = map_shared(name, O_CREAT | O_EXCL);
	if (shared != MAP_FAILED && !hy_counters_share(path)) {
		memcpy(shared, shim_counters, sizeof(*shared));
		__atomic_store_n(&shim_counters, shared, __ATOMIC_RELEASE);
	} else {
		if (shared != MAP_FAILED) {
			k_munmap(shared, sizeof(*shared));
			k_unlink(path);
		}
	}
	errno = saved;
}

void shim_count_forked(void)
{
	own = (struct shim_counters)EMPTY;
	shim_counters = &own;
	shim.pending = shim.folder[0] != '\0';
	memset(before, 0, sizeof(before));	/* the kernel's counts restart, too */
}

static uint64_t taken(uint64_t *counter)
{
	return __atomic_exchange_n(counter, 0, __ATOMIC_RELAXED);
}

static void add(uint64_t *to, uint64_t value)
{
	if (value)
		__atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

/* Adds the counts of a program without a file to FOLDER/rest, the common file of such programs. */
static void fold(void)
{
	struct shim_counters *rest = map_shared("rest", 0);

	if (rest == MAP_FAILED)
		return;
	rest->magic = own.magic;
	rest->reasons = own.reasons;
	rest->stripe_bytes = own.stripe_bytes;
	for (int stripe = 0; stripe < SHIM_STRIPES; stripe++) {
		for (int op = 0; op < HY_OPS; op++) {
			for (int reason = 0; reason < HY_REASONS; reason++) {
				struct hy_count *from = &own.stripes[stripe].by[op][reason];
				struct hy_count *to = &rest->stripes[stripe].by[op][reason];
				uint64_t bytes = taken(&from->bytes);

				add(&to->requests, taken(&from->requests));
				add(&to->bytes, bytes);
				before[op] += bytes;	/* reported */
			}
		}
	}
	for (int op = 0; op < HY_OPS; op++) {	/* counts of the engine, of a program without space for a file */
		for (int reason = 0; reason < HY_REASONS; reason++) {
			struct hy_count *from = &hy_counters()->by[op][reason];
			struct hy_count *to = &rest->stripes[0].by[op][reason];
			uint64_t bytes = taken(&from->bytes);

			add(&to->requests, taken(&from->requests));
			add(&to->bytes, bytes);
			before[op] += bytes;
		}
	}
	add(&rest->passed[HY_READ], taken(&own.passed[HY_READ]));
	add(&rest->passed[HY_WRITE], taken(&own.passed[HY_WRITE]));
	add(&rest->copied_bytes, taken(&own.copied_bytes));
	add(&rest->stdio_files, taken(&own.stdio_files));
	add(&rest->stdio_requests, taken(&own.stdio_requests));
	add(&rest->execs, taken(&own.execs));
	add(&rest->uncovered, taken(&own.uncovered));
	add(&rest->ended, 1);
	k_munmap(rest, sizeof(*rest));
}

void shim_count_final(void)
{
	struct shim_counters *counters = shim_counters;
	const struct hy_counters *engine = hy_counters();
	uint64_t now[HY_OPS];

	counters->known = 0;
	if (before_known && account(now)) {
		for (int op = 0; op < HY_OPS; op++) {
			uint64_t seen = before[op];

			for (int reason = 0; reason < HY_REASONS; reason++) {
				seen += engine->by[op][reason].bytes;
				for (int stripe = 0; stripe < SHIM_STRIPES; stripe++)
					seen += counters->stripes[stripe].by[op][reason].bytes;
			}
			counters->passed[op] = now[op] > seen ? now[op] - seen : 0;
			if (counters == &own)
				before[op] += counters->passed[op];	/* reported: this may not be the last call */
		}
		counters->known = 1;
	}
	if (counters == &own && shim.folder[0])
		fold();
}
