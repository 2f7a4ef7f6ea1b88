/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What AI jobs do to the page cache, as a plain program: nothing in it knows of hybrid I/O, which is preloaded.
 *
 *   page_cache_load steps buffered|direct|unaligned STEP...  one process does the steps in order, a JSON line for each;
 *                                        unaligned: buffered, into memory as malloc(3) gives it
 *       read:FILE:BYTES:BLOCK            open, read(2) from the start in blocks, close
 *       write:FILE:BYTES:BLOCK           open (created, truncated), write(2) in blocks, fsync, close
 *       over:FILE:BYTES:BLOCK            the same onto the blocks of a file that is there
 *       random:FILE:BYTES:BLOCK:COUNT[:FIRST]  open, read(2) FIRST bytes (not in the account), COUNT pread(2) of BLOCK
 *                                        at multiples of it within BYTES, close
 *   page_cache_load hot FILE BYTES RECORD RATE       a neighbour: re-reads records of a hot set at random, RATE per
 *       second, through the cache. Reads the set twice, says "ready"; answers each line of standard input with what it
 *       saw since the one before, two lines of JSON; ends with the input. A read is a hit when RWF_NOWAIT gave all of it.
 *
 * All sizes are multiples of 4096 and the buffer, else, is aligned, so that the same requests can go direct.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define LATENCIES (1 << 21)

struct taken {
	long long wall, cpu, user, system, read_chars, written_chars, read_bytes, written_bytes;
};

static void must(bool fine, const char *what)
{
	if (!fine) {
		perror(what);
		exit(1);
	}
}

static long long now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long long micros(struct timeval t)
{
	return t.tv_sec * 1000000LL + t.tv_usec;
}

/* The kernel's account of this process, up to now. */
static struct taken take(void)
{
	struct taken t = { 0 };
	struct rusage usage;
	FILE *io = fopen("/proc/self/io", "r");
	char line[64];

	must(io, "/proc/self/io");
	while (fgets(line, sizeof(line), io)) {
		sscanf(line, "rchar: %lld", &t.read_chars);
		sscanf(line, "wchar: %lld", &t.written_chars);
		sscanf(line, "read_bytes: %lld", &t.read_bytes);
		sscanf(line, "write_bytes: %lld", &t.written_bytes);
	}
	fclose(io);
	getrusage(RUSAGE_SELF, &usage);
	t.user = micros(usage.ru_utime) * 1000;
	t.system = micros(usage.ru_stime) * 1000;
	t.cpu = now(CLOCK_PROCESS_CPUTIME_ID);
	t.wall = now(CLOCK_MONOTONIC);
	return t;
}

static void tell(const char *step, struct taken a, long long calls)
{
	struct taken b = take();

	printf("{\"step\": \"%s\", \"calls\": %lld, \"wall_ns\": %lld, \"cpu_ns\": %lld, \"user_ns\": %lld, "
	       "\"system_ns\": %lld, \"rchar\": %lld, \"wchar\": %lld, \"read_bytes\": %lld, \"write_bytes\": %lld}\n",
	       step, calls, b.wall - a.wall, b.cpu - a.cpu, b.user - a.user, b.system - a.system,
	       b.read_chars - a.read_chars, b.written_chars - a.written_chars, b.read_bytes - a.read_bytes,
	       b.written_bytes - a.written_bytes);
	fflush(stdout);
}

static void *buffer_of(size_t bytes, bool aligned)
{
	void *buffer = NULL;

	must(!posix_memalign(&buffer, PAGE, bytes + PAGE), "memory");
	memset(buffer, 0x5a, bytes + PAGE);	/* its page faults belong to no step */
	return (char *)buffer + (aligned ? 0 : 16);
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static long long sequential(int fd, bool write_it, char *buffer, long long bytes, long long block)
{
	long long calls = 0;

	for (long long at = 0; at < bytes; calls++) {
		size_t size = bytes - at < block ? bytes - at : block;
		ssize_t done = write_it ? write(fd, buffer, size) : read(fd, buffer, size);

		must(done > 0, write_it ? "write" : "read");
		at += done;
	}
	return calls;
}

static void one_step(const char *step, bool direct, bool aligned)
{
	char op[16], path[1024];
	long long bytes, block, count = 0, first = 0, calls = 0;
	int got = sscanf(step, "%15[^:]:%1023[^:]:%lld:%lld:%lld:%lld", op, path, &bytes, &block, &count, &first);
	bool over = !strcmp(op, "over"), write_it = over || !strcmp(op, "write");
	uint64_t state = 88172645463325252ULL;
	struct taken begin;
	char *buffer;
	int fd;

	must(got >= 4 && block > 0 && bytes >= block, step);
	buffer = buffer_of(block > first ? block : first, aligned);
	begin = take();
	fd = open(path, (write_it ? O_WRONLY | O_CREAT | (over ? 0 : O_TRUNC) : O_RDONLY) | (direct ? O_DIRECT : 0), 0600);
	must(fd >= 0, path);
	if (strcmp(op, "random")) {
		calls = sequential(fd, write_it, buffer, bytes, block);
	} else {
		if (first) {
			must(read(fd, buffer, first) == first, "read");
			begin = take();
		}
		for (; calls < count; calls++) {
			off_t at = next_random(&state) % (bytes / block) * block;

			must(pread(fd, buffer, block, at) == block, "pread");
		}
	}
	must(!write_it || !fsync(fd), "fsync");
	must(!close(fd), "close");
	tell(op, begin, calls);
	free(aligned ? buffer : buffer - 16);
}

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static long long percentile(const uint32_t *sorted, long long count, double share)
{
	return count ? sorted[(long long)((count - 1) * share)] : 0;
}

static void hot(const char *path, long long bytes, long long record, long long rate)
{
	static uint32_t latency[LATENCIES];
	int fd = open(path, O_RDONLY);
	char *buffer = buffer_of(1 << 20, true);
	uint64_t state = 2463534242ULL;
	long long calls = 0, hits = 0;
	struct taken begin;

	must(fd >= 0, path);
	for (int pass = 0; pass < 2; pass++) {	/* twice: the second makes the pages active */
		must(!lseek(fd, 0, SEEK_SET), "lseek");
		sequential(fd, false, buffer, bytes, 1 << 20);
	}
	puts("ready");
	fflush(stdout);
	begin = take();
	for (long long tick = now(CLOCK_MONOTONIC);; tick += 1000000) {
		struct pollfd input = { .fd = 0, .events = POLLIN };
		long long late = now(CLOCK_MONOTONIC);
		struct timespec at;

		if (tick < late)	/* what could not be done in time is not made up for: no burst follows a stall */
			tick = late;
		at = (struct timespec){ tick / 1000000000, tick % 1000000000 };
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
		if (poll(&input, 1, 0) > 0) {
			char line[16];

			if (read(0, line, sizeof(line)) <= 0)
				return;
			long long kept = calls < LATENCIES ? calls : LATENCIES;

			qsort(latency, kept, sizeof(*latency), by_size);
			printf("{\"hits\": %lld, \"p50_ns\": %lld, \"p99_ns\": %lld, \"p999_ns\": %lld, \"max_ns\": %lld}\n",
			       hits, percentile(latency, kept, 0.5), percentile(latency, kept, 0.99),
			       percentile(latency, kept, 0.999), percentile(latency, kept, 1));
			tell("hot", begin, calls);
			calls = hits = 0;
			begin = take();
			tick = begin.wall;
		}
		for (long long turn = 0; turn < rate / 1000; turn++, calls++) {
			struct iovec vector = { buffer, record };
			off_t offset = next_random(&state) % (bytes / record) * record;
			long long start = now(CLOCK_MONOTONIC), took;

			if (preadv2(fd, &vector, 1, offset, RWF_NOWAIT) == record)
				hits++;
			else
				must(pread(fd, buffer, record, offset) == record, "pread");
			took = now(CLOCK_MONOTONIC) - start;
			if (calls < LATENCIES)
				latency[calls] = took < UINT32_MAX ? took : UINT32_MAX;
		}
	}
}

int main(int count, char **words)
{
	const char *what = count > 1 ? words[1] : "";

	if (!strcmp(what, "steps") && count > 3) {
		for (int i = 3; i < count; i++)
			one_step(words[i], !strcmp(words[2], "direct"), strcmp(words[2], "unaligned"));
	} else if (!strcmp(what, "hot") && count == 6) {
		hot(words[2], atoll(words[3]), atoll(words[4]), atoll(words[5]));
	} else {
		fputs("usage: page_cache_load steps|hot ... (see its source)\n", stderr);
		return 2;
	}
	return 0;
}
