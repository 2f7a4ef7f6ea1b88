/*
 * Known shares of CPU time, by its own clock. Says {"event":"start",...} on stdout, waits for a line on stdin, works,
 * says {"event":"end",...} with the CPU time (CLOCK_THREAD_CPUTIME_ID) that each part took, and exits.
 *
 *   split MS      heavy() about 70 % of MS milliseconds of CPU time, light() the rest, in turns of uneven length
 *   threads MS    three threads, "third-0" to "third-2", that take 1, 2 and 3 parts of MS each
 *   fork MS       a child that does what split does
 *   kernel MS     read(2) of /dev/zero
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static long long cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Two bodies, so that no compiler takes them for one. */
NOINLINE void heavy(volatile unsigned *value, long turns)
{
	while (turns--)
		*value = *value * 1664525u + 1013904223u;
}

NOINLINE void light(volatile unsigned *value, long turns)
{
	while (turns--)
		*value = (*value >> 3) ^ (*value << 5) ^ 0x9e3779b9u;
}

struct shares { long long heavy_ns, light_ns, all_ns; };

NOINLINE struct shares split(long ms)
{
	struct shares took = { 0, 0, 0 };
	long long begin = cpu_ns(), end = begin + ms * 1000000LL, now = begin, before;
	volatile unsigned value = 1;
	unsigned dice = 7;

	while (now < end) {	/* whoever is behind works next: 7 parts of the one, 3 of the other */
		dice = dice * 1103515245u + 12345u;
		before = now;
		if (took.heavy_ns * 3 <= took.light_ns * 7) {
			heavy(&value, 20000 + dice % 300000);
			now = cpu_ns();
			took.heavy_ns += now - before;
		} else {
			light(&value, 20000 + dice % 300000);
			now = cpu_ns();
			took.light_ns += now - before;
		}
	}
	took.all_ns = now - begin;
	return took;
}

static void tell(struct shares took)
{
	printf("{\"event\": \"end\", \"heavy_ns\": %lld, \"light_ns\": %lld, \"all_ns\": %lld}\n", took.heavy_ns,
	       took.light_ns, took.all_ns);
}

struct part { int number; long ms; long long ns; };

static void *third(void *argument)
{
	struct part *part = argument;
	long long begin = cpu_ns();
	volatile unsigned value = 1;
	char name[16];

	snprintf(name, sizeof(name), "third-%d", part->number);
	pthread_setname_np(pthread_self(), name);
	while (cpu_ns() - begin < part->ms * 1000000LL)
		heavy(&value, 50000);
	part->ns = cpu_ns() - begin;
	return 0;
}

static void threads(long ms)
{
	struct part parts[3];
	pthread_t made[3];

	for (int i = 0; i < 3; i++) {
		parts[i] = (struct part){ i, ms * (i + 1), 0 };
		pthread_create(&made[i], 0, third, &parts[i]);
	}
	for (int i = 0; i < 3; i++)
		pthread_join(made[i], 0);
	printf("{\"event\": \"end\", \"ns\": [%lld, %lld, %lld]}\n", parts[0].ns, parts[1].ns, parts[2].ns);
}

static void kernel(long ms)
{
	static char buffer[1 << 20];
	long long begin = cpu_ns(), now = begin, before, inside = 0;
	int zero = open("/dev/zero", O_RDONLY);

	while (now - begin < ms * 1000000LL) {
		before = now;
		if (read(zero, buffer, sizeof(buffer)) < 0)
			exit(1);
		now = cpu_ns();
		inside += now - before;
	}
	printf("{\"event\": \"end\", \"read_ns\": %lld, \"all_ns\": %lld}\n", inside, now - begin);
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "split";
	long ms = count > 2 ? atol(arguments[2]) : 1000;
	char line[8];

	setvbuf(stdout, 0, _IOLBF, 0);
	printf("{\"event\": \"start\", \"pid\": %d}\n", (int)getpid());
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	if (!strcmp(mode, "threads")) {
		threads(ms);
	} else if (!strcmp(mode, "kernel")) {
		kernel(ms);
	} else if (!strcmp(mode, "fork")) {
		if (!fork()) {
			printf("{\"event\": \"child\", \"pid\": %d}\n", (int)getpid());
			tell(split(ms));
			_exit(0);
		}
		wait(0);
	} else {
		tell(split(ms));
	}
	return 0;
}
