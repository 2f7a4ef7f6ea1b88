/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that uses the page cache on request.   usage: page_reads FILE MEBIBYTES   (it makes the file)
 *
 * One command per line of standard input, one line "CALLS CPU_NS WALL_NS" in answer to each, the CPU time and the
 * wall time of the calls alone:
 *   warm N      N reads of 4 KiB, in a row, of a file that is cached
 *   big N       N reads of 1 MiB of it
 *   cold N      N reads of 128 KiB of a file that is not: what is read is evicted before, not counted
 *   write N     N overwriting writes of 4 KiB of clean pages
 *   fault N     N touches of a page of it, mapped anew
 *   getppid N   N times the cheapest system call there is
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096L
#define MIB (1L << 20)

static int file;
static long size;
static char *buffer;

static long long now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void must(long result, const char *what)
{
	if (result < 0) {
		perror(what);
		exit(1);
	}
}

static void forget(void)
{
	must(fsync(file), "fsync");
	must(-posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), "posix_fadvise");
}

static void cache(void)
{
	for (long at = 0; at < size; at += MIB)
		must(pread(file, buffer, MIB, at), "pread");
}

static long faults(long n)
{
	char *map = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
	volatile long sum = 0;

	if (map == MAP_FAILED)
		return -1;
	for (long i = 0; i < n; i++)
		sum += map[i * PAGE % size];
	return munmap(map, size);
}

static int work(const char *what, long n)
{
	if (!strcmp(what, "warm"))
		for (long i = 0; i < n; i++)
			must(pread(file, buffer, PAGE, i * PAGE % size), what);
	else if (!strcmp(what, "big"))
		for (long i = 0; i < n; i++)
			must(pread(file, buffer, MIB, i * MIB % size), what);
	else if (!strcmp(what, "cold"))
		for (long i = 0; i < n; i++)
			must(pread(file, buffer, MIB / 8, i * (MIB / 8) % size), what);
	else if (!strcmp(what, "write"))
		for (long i = 0; i < n; i++)
			must(pwrite(file, buffer, PAGE, i * PAGE % size), what);
	else if (!strcmp(what, "fault"))
		must(faults(n), what);
	else if (!strcmp(what, "getppid"))
		for (long i = 0; i < n; i++)
			syscall(SYS_getppid);
	else
		return 2;
	return 0;
}

int main(int argc, char **argv)
{
	char line[128], what[16];
	long n;

	if (argc != 3)
		return 2;
	size = atol(argv[2]) * MIB;
	buffer = calloc(1, MIB);
	must(file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600), argv[1]);
	for (long at = 0; at < size; at += MIB)
		must(pwrite(file, buffer, MIB, at), "pwrite");
	while (fgets(line, sizeof(line), stdin)) {
		long long cpu, wall;

		if (sscanf(line, "%15s %ld", what, &n) != 2)
			return 2;
		if (!strcmp(what, "cold"))
			forget();
		else
			cache();
		if (!strcmp(what, "write"))
			must(fsync(file), "fsync");
		wall = now(CLOCK_MONOTONIC);
		cpu = now(CLOCK_PROCESS_CPUTIME_ID);
		if (work(what, n))
			return 2;
		cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
		wall = now(CLOCK_MONOTONIC) - wall;
		printf("%ld %lld %lld\n", n, cpu, wall);
		fflush(stdout);
	}
	return 0;
}
