/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of this process, in private memory or in a file mapped shared. */
#include <string.h>
#include <time.h>

#include "internal.h"

#define MAGIC 0x3130304f49594877ull	/* "whYIO001" */

static struct hy_counters own;
static struct hy_counters *current = &own;

uint64_t hy_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void name_process(struct hy_counters *counters)
{
	int fd = k_open("/proc/self/comm", O_RDONLY | O_CLOEXEC, 0);
	ssize_t got = fd < 0 ? 0 : k_read(fd, counters->program, sizeof(counters->program) - 1);

	counters->program[got > 0 ? got - 1 : 0] = '\0';	/* it ends with a line feed */
	if (fd >= 0)
		k_close(fd);
	counters->magic = MAGIC;
	counters->abi = HY_ABI;
	counters->pid = (uint64_t)syscall(SYS_getpid);
	counters->start_ns = hy_now_ns();
}

struct hy_counters *hy_counters(void)
{
	return __atomic_load_n(&current, __ATOMIC_ACQUIRE);
}

__attribute__((constructor)) static void start(void)
{
	int before = errno;

	name_process(&own);
	errno = before;
}

/*
 * Allocates every block before the file is mapped: writing to a mapped hole on a full device (such as a container's
 * /dev/shm of 64 MiB) raises SIGBUS, and growth beyond RLIMIT_FSIZE SIGXFSZ. Without fallocate() zeros are written.
 */
bool hy_counters_room(int fd, size_t bytes)
{
	static const char zeros[4096];
	struct stat about;

	if (k_fstat(fd, &about))
		return false;
	size_t at = (size_t)about.st_size;

	if (at < bytes && k_largest_file() < bytes)
		return false;
	if (at >= bytes || !k_fallocate(fd, (off_t)at, (off_t)(bytes - at)))
		return true;
	if (errno != EOPNOTSUPP && errno != ENOSYS)
		return false;
	while (at < bytes) {
		ssize_t got = k_pwrite(fd, zeros, bytes - at < sizeof(zeros) ? bytes - at : sizeof(zeros), (off_t)at);

		if (got <= 0)
			return false;
		at += (size_t)got;
	}
	return true;
}

int hy_counters_share(const char *path)
{
	struct hy_counters *shared, *before = hy_counters();
	int fd = k_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0)
		return -1;
	if (!hy_counters_room(fd, sizeof(*shared)))
		shared = MAP_FAILED;
	else
		shared = k_mmap(sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int failed = errno;

	k_close(fd);
	if (shared == MAP_FAILED) {
		errno = failed;
		return -1;
	}
	memcpy(shared, before, sizeof(*shared));
	/* The old mapping stays: another thread may be using it. */
	__atomic_store_n(&current, shared, __ATOMIC_RELEASE);
	return 0;
}

/* A child starts new counters, not in the file of its parent. */
void hy_counters_forked(void)
{
	memset(&own, 0, sizeof(own));
	name_process(&own);
	__atomic_store_n(&current, &own, __ATOMIC_RELEASE);
}

void hy_count(struct hy_count (*file)[HY_REASONS], enum hy_op op, enum hy_reason reason, uint64_t bytes)
{
	struct hy_count *all = &hy_counters()->by[op][reason];

	hy_add(&all->requests, 1);
	hy_add(&all->bytes, bytes);
	hy_add(&file[op][reason].requests, 1);
	hy_add(&file[op][reason].bytes, bytes);
}

void hy_count_tally(struct hy_count (*file)[HY_REASONS], enum hy_op op, enum hy_reason reason, const struct hy_tally *tally)
{
	struct hy_counters *counters = hy_counters();

	for (int i = 0; i < HY_REASONS; i++) {
		if (!tally->bytes[i])
			continue;
		hy_add(&counters->by[op][i].bytes, tally->bytes[i]);
		hy_add(&file[op][i].bytes, tally->bytes[i]);
	}
	hy_add(&counters->by[op][reason].requests, 1);
	hy_add(&file[op][reason].requests, 1);
	if (tally->bounced)
		hy_add(&counters->bounced_bytes, tally->bounced);
	if (tally->refused)
		hy_add(&counters->fallbacks, tally->refused);
}

void hy_count_error(void)
{
	hy_add(&hy_counters()->errors, 1);
}

void hy_sizes(uint32_t *sizes, uint32_t count)
{
	static const uint32_t all[] = {
		sizeof(struct hy_policy), sizeof(struct hy_request), sizeof(struct hy_pressure),
		sizeof(struct hy_choice), sizeof(struct hy_counters), sizeof(struct hy_status),
	};

	for (uint32_t i = 0; i < count; i++)
		sizes[i] = i < sizeof(all) / sizeof(all[0]) ? all[i] : 0;
}
