/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes hand one byte to and fro through pipes: each hand-over is a switch.
 *   usage: pingpong CPU CPU   (where each of the two is pinned)
 * Per line "pingpong N" of standard input, N round trips and one line "N CPU_NS WALL_NS" (CPU time of both).
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static long long now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set)) {
		perror("sched_setaffinity");
		exit(1);
	}
}

int main(int argc, char **argv)
{
	int to[2], back[2];
	clockid_t other;
	char line[64], byte = 0;
	pid_t child;
	long n;

	if (argc != 3 || pipe(to) || pipe(back))
		return 2;
	child = fork();
	if (child < 0)
		return 1;
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin(atoi(argv[2]));
		close(to[1]);
		close(back[0]);
		while (read(to[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
			;
		_exit(0);
	}
	close(to[0]);
	close(back[1]);
	pin(atoi(argv[1]));
	if (clock_getcpuclockid(child, &other))
		return 1;
	while (fgets(line, sizeof(line), stdin)) {
		long long cpu, wall;

		if (sscanf(line, "pingpong %ld", &n) != 1)
			return 2;
		wall = now(CLOCK_MONOTONIC);
		cpu = now(CLOCK_PROCESS_CPUTIME_ID) + now(other);
		for (long i = 0; i < n; i++)
			if (write(to[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
				return 1;
		cpu = now(CLOCK_PROCESS_CPUTIME_ID) + now(other) - cpu;
		wall = now(CLOCK_MONOTONIC) - wall;
		printf("%ld %lld %lld\n", n, cpu, wall);
		fflush(stdout);
	}
	return 0;
}
