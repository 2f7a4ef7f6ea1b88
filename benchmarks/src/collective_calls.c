/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program with functions of NCCL's names, called on request.
 *
 * One command per line of standard input, one line "CALLS CPU_NS WALL_NS" in answer to each, for the calls alone:
 *   reduce N    N calls of ncclAllReduce
 *   gather N    N calls of ncclAllGather
 */
#include <stddef.h>
#include <stdio.h>
#include <time.h>

/* The kernel emulates the first instruction of one, and must step through a copy of that of the other. */
#if defined(__x86_64__)
__attribute__((naked)) int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream)
{
	__asm__("push %rbx; pop %rbx; xor %eax, %eax; ret");
}

__attribute__((naked)) int ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, void *stream)
{
	__asm__("xor %eax, %eax; ret");
}
#else
__attribute__((noinline)) int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream)
{
	__asm__ volatile("" : : "r"(comm) : "memory");
	return 0;
}

__attribute__((noinline)) int ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, void *stream)
{
	__asm__ volatile("" : : "r"(comm) : "memory");
	return 0;
}
#endif

static long long now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(void)
{
	char name[16];
	long calls;

	while (scanf("%15s %ld", name, &calls) == 2) {
		long long cpu = now(CLOCK_PROCESS_CPUTIME_ID), wall = now(CLOCK_MONOTONIC);

		if (*name == 'r')
			for (long i = 0; i < calls; i++)
				ncclAllReduce(NULL, NULL, i, 7, 0, &calls, NULL);
		else
			for (long i = 0; i < calls; i++)
				ncclAllGather(NULL, NULL, i, 7, &calls, NULL);
		cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
		wall = now(CLOCK_MONOTONIC) - wall;
		printf("%ld %lld %lld\n", calls, cpu, wall);
		fflush(stdout);
	}
	return 0;
}
