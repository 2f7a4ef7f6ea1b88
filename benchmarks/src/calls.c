/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that makes system calls on request, so that one and the same process is measured with and
 * without a tracer.   usage: calls FILE   (at least 4 KiB, read through the page cache)
 *
 * One command per line of standard input, one line "CALLS CPU_NS WALL_NS" in answer to each:
 *   pread N       N reads of the first 4 KiB
 *   getppid N     N times the cheapest system call there is
 *   paced R MS    R reads per second for MS milliseconds, evenly in bursts of one millisecond
 *   stacks N      N short sleeps, each under a user stack of its own (N at most 2^20)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int file;
static char buffer[4096];

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

static void paced(long rate, long milliseconds)
{
	long long begin = now(CLOCK_MONOTONIC);
	long done = 0;

	for (long tick = 1; tick <= milliseconds; tick++) {
		long long until = begin + tick * 1000000LL;
		struct timespec at = { until / 1000000000, until % 1000000000 };

		for (; done < rate * tick / 1000; done++)
			must(pread(file, buffer, sizeof(buffer), 0), "pread");
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
	}
}

/* Two functions, called in the order that the bits of `path` say: every path is a stack of its own. */
static int left(long path, int depth);
static int right(long path, int depth);

static int step(long path, int depth)
{
	struct timespec moment = { 0, 1000 };

	if (!depth)
		return nanosleep(&moment, NULL);
	return (path & 1 ? right(path >> 1, depth - 1) : left(path >> 1, depth - 1)) + 1;
}

__attribute__((noinline)) static int left(long path, int depth)
{
	return step(path, depth) + 2;
}

__attribute__((noinline)) static int right(long path, int depth)
{
	return step(path, depth) + 3;
}

int main(int argc, char **argv)
{
	char line[128], what[16];
	long n, m;

	if (argc != 2)
		return 2;
	must(file = open(argv[1], O_RDONLY), argv[1]);
	while (fgets(line, sizeof(line), stdin)) {
		long long cpu, wall;

		m = 0;
		if (sscanf(line, "%15s %ld %ld", what, &n, &m) < 2)
			return 2;
		wall = now(CLOCK_MONOTONIC);
		cpu = now(CLOCK_PROCESS_CPUTIME_ID);
		if (!strcmp(what, "pread"))
			for (long i = 0; i < n; i++)
				must(pread(file, buffer, sizeof(buffer), 0), what);
		else if (!strcmp(what, "getppid"))
			for (long i = 0; i < n; i++)
				syscall(SYS_getppid);
		else if (!strcmp(what, "paced"))
			paced(n, m);
		else if (!strcmp(what, "stacks"))
			for (long i = 0; i < n; i++)
				left(i, 20);
		else
			return 2;
		cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
		wall = now(CLOCK_MONOTONIC) - wall;
		printf("%ld %lld %lld\n", n, cpu, wall);
		fflush(stdout);
	}
	return 0;
}
