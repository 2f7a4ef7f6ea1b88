/*
 * The same program in several versions, of which one function takes twice as long. Says {"event":"start",...} on
 * stdout, waits for a line on stdin, works, says {"event":"end",...} with the rounds it did and the CPU time
 * (CLOCK_THREAD_CPUTIME_ID) that each part took, and exits.
 *
 *   plain MS      each round: parse() 40, encode() 10 and in it digest() 10, store() 20 and in it digest() 5, audit() 15
 *   encode MS     the own loop of encode() does 20
 *   digest MS     digest() does twice as much wherever it is called
 *   calls MS      encode() calls digest() twice as often; store() does not
 *
 * Rounds are of uneven length: those of one length would beat against the sampling clock.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static long long cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static volatile unsigned value = 1;
static long part = 20000, encode_parts = 10, digest_factor = 1, encode_calls = 1;

/* Bodies that differ, so that no compiler takes two of them for one. */
NOINLINE void digest(long turns)
{
	for (turns *= digest_factor; turns--;)
		value = (value >> 3) ^ (value << 5) ^ 0x9e3779b9u;
}

NOINLINE void parse(long turns)
{
	while (turns--)
		value = value * 1664525u + 1013904223u;
}

NOINLINE void encode(long turns)
{
	while (turns--)
		value = value * 22695477u + 1u;
	for (long call = 0; call < encode_calls; call++)
		digest(10 * part);
	value ^= 1u;	/* no tail call: it stays on the stack */
}

NOINLINE void store(long turns)
{
	while (turns--)
		value = (value ^ 0x5bd1e995u) * 3u;
	digest(5 * part);
	value ^= 2u;
}

NOINLINE void audit(long turns)
{
	while (turns--)
		value = (value + 0x7f4a7c15u) ^ (value >> 7);
}

int main(int count, char **arguments)
{
	const char *version = count > 1 ? arguments[1] : "plain";
	long ms = count > 2 ? atol(arguments[2]) : 1000, rounds = 0;
	long long begin, now, took[4] = { 0, 0, 0, 0 };
	unsigned dice = 7;
	char line[8];

	setvbuf(stdout, 0, _IOLBF, 0);
	printf("{\"event\": \"start\", \"pid\": %d}\n", (int)getpid());
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	if (!strcmp(version, "encode"))
		encode_parts = 20;
	else if (!strcmp(version, "digest"))
		digest_factor = 2;
	else if (!strcmp(version, "calls"))
		encode_calls = 2;
	else if (strcmp(version, "plain"))
		return 2;
	for (now = begin = cpu_ns(); now - begin < ms * 1000000LL; rounds++) {
		long long start = now;

		dice = dice * 1103515245u + 12345u;
		part = 5000 + (dice >> 8) % 30000;
		parse(40 * part);
		took[0] += (now = cpu_ns()) - start, start = now;
		encode(encode_parts * part);
		took[1] += (now = cpu_ns()) - start, start = now;
		store(20 * part);
		took[2] += (now = cpu_ns()) - start, start = now;
		audit(15 * part);
		took[3] += (now = cpu_ns()) - start;
	}
	printf("{\"event\": \"end\", \"rounds\": %ld, \"parse_ns\": %lld, \"encode_ns\": %lld, \"store_ns\": %lld, "
	       "\"audit_ns\": %lld}\n", rounds, took[0], took[1], took[2], took[3]);
	return 0;
}
