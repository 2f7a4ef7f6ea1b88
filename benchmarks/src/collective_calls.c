/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program with a function of NCCL's name, called on request.
 *
 * One command per line of standard input, one line "CALLS CPU_NS WALL_NS" in answer to each, for the calls alone:
 *   call N      N calls
 */
#include <stddef.h>
#include <stdio.h>
#include <time.h>

__attribute__((noinline)) int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream)
{
	__asm__ volatile("" : : "r"(comm) : "memory");
	return 0;
}

static long long now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(void)
{
	long calls;

	while (scanf(" call %ld", &calls) == 1) {
		long long cpu = now(CLOCK_PROCESS_CPUTIME_ID), wall = now(CLOCK_MONOTONIC);

		for (long i = 0; i < calls; i++)
			ncclAllReduce(NULL, NULL, i, 7, 0, &calls, NULL);
		cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
		wall = now(CLOCK_MONOTONIC) - wall;
		printf("%ld %lld %lld\n", calls, cpu, wall);
		fflush(stdout);
	}
	return 0;
}
