/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs do with files, to be run with and without the shim: `shim_program WHAT FILE [SEED]`. Each says what it
 * found on standard output, which must be the same both times, and ends with 0 where what it checks itself is right.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST (256 * 1024)
#define CHECK(what)                                                                                                   \
	do {                                                                                                          \
		if (!(what)) {                                                                                        \
			fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #what, strerror(errno));                      \
			exit(1);                                                                                      \
		}                                                                                                     \
	} while (0)

static uint64_t state;

static uint64_t random_below(uint64_t bound)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % bound;
}

static void fill(char *data, size_t bytes, uint64_t with)
{
	for (size_t i = 0; i < bytes; i++)
		data[i] = (char)((with + i) * 2654435761u >> 13);
}

static uint64_t digest(uint64_t hash, const char *data, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ (unsigned char)data[i]) * 1099511628211ull;
	return hash;
}

/* A size that likes blocks: often whole ones, often just beside. */
static size_t some_size(void)
{
	size_t bytes = random_below(4) ? random_below(64) * 4096 : random_below(MOST);

	return random_below(3) ? bytes : bytes + random_below(7);
}

/* ---- everything, one after the other ---- */

static void fuzz(const char *path)
{
	static char memory[2][MOST + 8192];
	int fds[3] = { -1, -1, -1 }, which;
	uint64_t hash = 14695981039346656037ull;
	FILE *stream;

	unlink(path);
	for (int step = 0; step < 700; step++) {
		char *data = memory[0] + (random_below(2) ? 0 : random_below(600));
		size_t bytes = some_size(), half;
		off_t at = (off_t)random_below(3 << 20);
		struct iovec rows[3];
		long got = 0;
		struct stat about;

		which = (int)random_below(3);
		if (fds[which] < 0) {
			int flags = O_RDWR | O_CREAT | (random_below(6) ? 0 : O_APPEND) | (random_below(12) ? 0 : O_TRUNC);

			fds[which] = open(path, flags, 0644);
			CHECK(fds[which] >= 0);
		}
		if (bytes > MOST)
			bytes = MOST;
		half = bytes ? random_below(bytes) : 0;
		rows[0] = (struct iovec){ data, half / 2 };
		rows[1] = (struct iovec){ memory[1] + 16, half - half / 2 };
		rows[2] = (struct iovec){ data + half, bytes - half };
		switch (random_below(18)) {
		case 0 ... 1:
			fill(data, bytes, state);
			got = write(fds[which], data, bytes);
			break;
		case 2 ... 3:
			memset(data, 0, bytes);
			got = read(fds[which], data, bytes);
			hash = digest(hash, data, bytes);
			break;
		case 4:
			fill(data, bytes, state);
			got = pwrite(fds[which], data, bytes, at);
			break;
		case 5 ... 6:
			memset(data, 0, bytes);
			got = pread(fds[which], data, bytes, at);
			hash = digest(hash, data, bytes);
			break;
		case 7:
			fill(data, bytes, state);
			fill(memory[1], bytes, state + 1);
			got = random_below(2) ? writev(fds[which], rows, 3) : pwritev(fds[which], rows, 3, at);
			break;
		case 8:
			memset(data, 0, bytes);
			memset(memory[1], 0, bytes);
			got = random_below(2) ? readv(fds[which], rows, 3) : preadv2(fds[which], rows, 3, at, 0);
			hash = digest(digest(hash, data, bytes), memory[1], bytes);
			break;
		case 9:
			got = lseek(fds[which], at, SEEK_SET);
			break;
		case 10:
			got = lseek(fds[which], -(off_t)random_below(100000), random_below(2) ? SEEK_END : SEEK_CUR);
			break;
		case 11:
			if (!random_below(3))
				got = ftruncate(fds[which], at);
			break;
		case 12:
			got = random_below(2) ? fsync(fds[which]) : fdatasync(fds[which]);
			break;
		case 13:
			close(fds[which]);
			fds[which] = -1;
			break;
		case 14: {	/* another name of the same description */
			int other = (which + 1) % 3;

			if (fds[other] >= 0)
				got = dup2(fds[which], fds[other]) == fds[other];
			else
				fds[other] = random_below(2) ? dup(fds[which]) : fcntl(fds[which], F_DUPFD, 50);
			break;
		}
		case 15:	/* closed and opened behind the shim's back */
			syscall(SYS_close, fds[which]);
			got = syscall(SYS_openat, AT_FDCWD, path, O_RDWR);
			if (got != fds[which]) {
				syscall(SYS_dup3, got, fds[which], 0);
				syscall(SYS_close, got);
			}
			got = 0;
			break;
		case 16:	/* a stream on the same file */
			stream = fopen(path, "r+");
			CHECK(stream);
			got = fseek(stream, at, SEEK_SET);
			if (random_below(2)) {
				int first = fgetc(stream);

				if (first != EOF && random_below(2))
					ungetc(first, stream);
				memset(data, 0, bytes);
				got = (long)fread(data, 1, bytes, stream);
				hash = digest(hash, data, bytes) + (uint64_t)ftell(stream) + (uint64_t)feof(stream);
				hash += (uint64_t)fgetc(stream);
			} else {
				fill(data, bytes, state);
				fputs("head", stream);
				got = (long)fwrite(data, 1, bytes, stream);
				hash += (uint64_t)ftell(stream);
				fputs("tail", stream);
				fflush(stream);
				hash += (uint64_t)ftell(stream);
				if (bytes > 8 && !fseek(stream, -(long)random_below(bytes), SEEK_CUR)) {
					memset(data, 0, bytes);
					got += (long)fread(data, 1, bytes, stream);
					hash = digest(hash, data, bytes);
				}
			}
			fclose(stream);
			break;
		case 17:
			if (!random_below(8)) {
				pid_t child = fork();

				if (!child) {
					fill(data, bytes, state);
					_exit(write(fds[which], data, bytes) != (ssize_t)bytes);
				}
				waitpid(child, NULL, 0);
			}
			break;
		}
		hash = hash * 31 + (uint64_t)got;
		if (fds[which] >= 0) {
			CHECK(!fstat(fds[which], &about));
			hash = hash * 31 + (uint64_t)about.st_size + (uint64_t)lseek(fds[which], 0, SEEK_CUR);
		}
		if (step % 50 == 0)
			printf("%d %016llx\n", step, (unsigned long long)hash);
	}
	printf("%016llx\n", (unsigned long long)hash);
}

/* ---- several at one position ---- */

#define THREADS 4
#define RECORDS 60

static int shared;

static size_t record_bytes(uint64_t number)
{
	return number % 3 == 0 ? 64 : number % 3 == 1 ? 40000 + number % 500 : 65536;
}

static void write_record(int fd, uint64_t number, char *data)
{
	size_t bytes = record_bytes(number);

	memcpy(data, &number, sizeof(number));
	fill(data + 8, bytes - 8, number);
	CHECK(write(fd, data, bytes) == (ssize_t)bytes);
}

static void *writes(void *first)
{
	static __thread char data[128 * 1024];

	for (uint64_t i = 0; i < RECORDS; i++)
		write_record(shared, (uint64_t)(uintptr_t)first + i, data);
	return NULL;
}

/* All records are there once, whole, in whatever order; those from `numbers` on do not exist. */
static void check_records(const char *path, uint64_t numbers)
{
	int fd = open(path, O_RDONLY);
	char *seen = calloc(numbers, 1);
	static char data[128 * 1024], right[128 * 1024];
	uint64_t number, found = 0;
	ssize_t got;

	while ((got = read(fd, &number, sizeof(number))) == sizeof(number)) {
		size_t rest = record_bytes(number) - 8;

		CHECK(number < numbers);
		CHECK(!seen[number]++);
		CHECK(read(fd, data, rest) == (ssize_t)rest);
		fill(right, rest, number);
		CHECK(!memcmp(data, right, rest));
		found++;
	}
	CHECK(got == 0);
	CHECK(found == numbers);
	close(fd);
	free(seen);
}

static void threads(const char *path)
{
	pthread_t ids[THREADS];

	shared = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&ids[i], NULL, writes, (void *)(i * RECORDS)));
	for (int i = 0; i < THREADS; i++)
		pthread_join(ids[i], NULL);
	check_records(path, THREADS * RECORDS);
	printf("%d records\n", THREADS * RECORDS);
}

static void *reads(void *result)
{
	static __thread char data[65536];
	uint64_t *sum = result, number;
	ssize_t got;

	while ((got = read(shared, data, sizeof(data))) > 0) {
		CHECK(got == sizeof(data));
		memcpy(&number, data, sizeof(number));
		for (int block = 1; block < 16; block++)
			CHECK(!memcmp(data, data + block * 4096, sizeof(number)));
		sum[0]++;
		sum[1] += number;
	}
	CHECK(got == 0);
	return NULL;
}

static void readers(const char *path)
{
	static char data[65536];
	static uint64_t sums[THREADS][2];
	uint64_t all[2] = { 0, 0 };
	pthread_t ids[THREADS];

	shared = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	for (uint64_t number = 0; number < 200; number++) {
		for (int block = 0; block < 16; block++)
			memcpy(data + block * 4096, &number, sizeof(number));
		CHECK(write(shared, data, sizeof(data)) == sizeof(data));
	}
	CHECK(!fsync(shared) && !posix_fadvise(shared, 0, 0, POSIX_FADV_DONTNEED));
	lseek(shared, 0, SEEK_SET);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&ids[i], NULL, reads, sums[i]));
	for (int i = 0; i < THREADS; i++) {
		pthread_join(ids[i], NULL);
		all[0] += sums[i][0];
		all[1] += sums[i][1];
	}
	CHECK(all[0] == 200 && all[1] == 199 * 100);
	printf("%llu\n", (unsigned long long)lseek(shared, 0, SEEK_CUR));
}

static void forked(const char *path)
{
	static char data[128 * 1024];
	pid_t child;
	int status;

	shared = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	write_record(shared, 2 * RECORDS, data);
	child = fork();
	if (!child) {
		writes((void *)0);
		exit(0);
	}
	writes((void *)RECORDS);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	check_records(path, 2 * RECORDS + 1);
	printf("%llu\n", (unsigned long long)lseek(shared, 0, SEEK_CUR));
}

/* A handler that writes to the very file its thread is writing to, as loggers of crashes do. */
static volatile int interrupts;
static char beside[4096];

static void on_alarm(int signal)
{
	static char data[128 * 1024];
	int saved = errno, fd;

	(void)signal;
	if (interrupts < 120) {
		write_record(shared, (uint64_t)RECORDS * 10 + (uint64_t)interrupts, data);
		fd = open(beside, O_RDWR | O_CREAT | O_TRUNC, 0644);	/* one that nobody has seen before */
		write_record(fd, 2, data);
		close(fd);
		interrupts++;
	}
	errno = saved;
}

static void *sleeps(void *nothing)
{
	pause();
	return nothing;
}

static void handler(const char *path)
{
	struct itimerval every = { { 0, 500 }, { 0, 500 } }, never = { { 0, 0 }, { 0, 0 } };
	static char data[128 * 1024];

	sigset_t alarm;
	pthread_t id;

	shared = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	snprintf(beside, sizeof(beside), "%s.beside", path);
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm, NULL);
	CHECK(!pthread_create(&id, NULL, sleeps, NULL));	/* from now on malloc takes its locks */
	pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
	signal(SIGALRM, on_alarm);
	setitimer(ITIMER_REAL, &every, NULL);
	while (interrupts < 60) {
		void *some = malloc(3000), *more = malloc(5000);	/* locks that the handler may find taken */

		free(some);
		free(more);
	}
	for (uint64_t i = 0; i < RECORDS * 10; i++)
		write_record(shared, i, data);
	while (interrupts < 120)
		;
	setitimer(ITIMER_REAL, &never, NULL);
	close(shared);
	check_records(path, RECORDS * 10 + 120);
	printf("whole\n");
}

/* ---- descriptors ---- */

static void locks(const char *path)
{
	static char data[1 << 18];
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1 };
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644), status;
	pid_t child;

	fill(data, sizeof(data), 1);
	CHECK(write(fd, data, sizeof(data)) == sizeof(data));	/* looked after from here on */
	CHECK(pread(fd, data, sizeof(data), 0) == sizeof(data));
	CHECK(!fcntl(fd, F_SETLK, &lock));
	CHECK(write(fd, data, sizeof(data)) == sizeof(data));
	child = fork();
	if (!child) {
		struct flock asked = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1 };
		int mine = open(path, O_RDWR);

		_exit(fcntl(mine, F_GETLK, &asked) || asked.l_type != F_WRLCK);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(status == 0);	/* the lock is still held */
	close(fd);
	printf("locked\n");
}

static void numbers(const char *path)
{
	static char data[1 << 18];
	int fd, next, seen;
	struct rlimit limit = { 40, 40 };

	fill(data, sizeof(data), 1);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(write(fd, data, sizeof(data)) == sizeof(data));
	next = open("/dev/null", O_RDONLY);
	printf("%d %d\n", fd, next);		/* the lowest free numbers, as ever */
	for (int number = 3; number < 1024; number++)
		close(number);
	fd = open(path, O_RDWR);
	CHECK(pread(fd, data, sizeof(data), 0) == sizeof(data));
	closefrom(3);
	fd = open(path, O_RDWR);
	CHECK(pread(fd, data, sizeof(data), 0) == sizeof(data));
	CHECK(dup2(fd, 500) == 500 && dup2(fd, 501) == 501 && dup2(fd, 502) == 502);	/* wherever ours may be */
	CHECK(pwrite(500, data, sizeof(data), 4096) == sizeof(data));
	CHECK(pread(fd, data, sizeof(data), 0) == sizeof(data));
	closefrom(3);
	setrlimit(RLIMIT_NOFILE, &limit);
	for (seen = 0; (fd = open(path, O_RDWR)) >= 0; seen++)
		CHECK(pread(fd, data, sizeof(data), 0) == sizeof(data));
	printf("%d more, %d\n", seen, errno == EMFILE);
	/* calls that the shim does not know find some left */
	limit.rlim_max = limit.rlim_cur = 40;
	closefrom(3);
	for (int i = 0; i < 17; i++) {
		fd = open(path, O_RDWR);
		CHECK(pread(fd, data, sizeof(data), 0) == sizeof(data) && pwrite(fd, data, sizeof(data), 0) == sizeof(data));
	}
	for (seen = 0; epoll_create1(0) >= 0; seen++)
		;
	printf("%d others\n", seen >= 6);
}

static void mapped(const char *path)
{
	static char data[1 << 18];
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	char *map;

	fill(data, sizeof(data), 1);
	CHECK(write(fd, data, sizeof(data)) == sizeof(data));
	map = mmap(NULL, sizeof(data), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED);
	for (int i = 0; i < 200; i++) {
		size_t at = random_below(sizeof(data) - 70000), bytes = 4096 + random_below(65000);

		map[at] = (char)i;
		fill(data, bytes, (uint64_t)i);
		CHECK(pwrite(fd, data, bytes, (off_t)at) == (ssize_t)bytes);
		CHECK(!memcmp(map + at, data, bytes));
		map[at + 5] = (char)~i;
		CHECK(pread(fd, data, bytes, (off_t)at) == (ssize_t)bytes && data[5] == (char)~i);
	}
	printf("coherent\n");
}

static void errors(const char *path)
{
	static char data[1 << 18];
	struct rlimit limit = { 300000, RLIM_INFINITY };
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644), only = open(path, O_RDONLY), ends[2];
	char *volatile bad = (char *)64;
	ssize_t got;

#define TELL(call)                                                                                                    \
	do {                                                                                                          \
		errno = 0;                                                                                            \
		got = (call);                                                                                         \
		printf("%s %zd %d %lld\n", #call, got, got < 0 ? errno : 0, (long long)lseek(fd, 0, SEEK_CUR));       \
	} while (0)
	TELL(write(only, data, sizeof(data)));
	TELL(read(-1, data, sizeof(data)));
	TELL(pread(fd, data, sizeof(data), -5));
	TELL(pwrite(fd, data, sizeof(data), -1));
	TELL(read(fd, data, sizeof(data)));
	TELL(write(fd, data, 100000));
	TELL(write(fd, bad, 100000));
	TELL(read(fd, bad, 100000));
	TELL(pread(fd, bad, 65536, 0));
	TELL(writev(fd, (struct iovec[]){ { data, 4096 }, { bad, 8192 } }, 2));
	TELL(lseek(fd, 0, SEEK_SET));
	TELL(read(fd, data, sizeof(data)));
	TELL(read(fd, data, sizeof(data)));
	TELL(pread(fd, data, sizeof(data), 99999));
	TELL(preadv2(fd, &(struct iovec){ data, 65536 }, 1, 0, 0x40000000));
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &limit);
	TELL(lseek(fd, 200000, SEEK_SET));
	TELL(write(fd, data, sizeof(data)));
	TELL(write(fd, data, sizeof(data)));
	TELL(pwrite(fd, data, sizeof(data), 200000));
	TELL(pipe(ends));
	TELL(fcntl(ends[1], F_SETFL, O_NONBLOCK));
	TELL(write(ends[1], data, sizeof(data)));
	TELL(read(ends[0], data, sizeof(data)));
	TELL(write(1, "", 0));
	TELL(close(77));
	TELL(fcntl(fd, F_SETFL, O_APPEND));
	TELL(lseek(fd, 10, SEEK_SET));
	TELL(ftruncate(fd, 4096));
	TELL(write(fd, data, 70000));
}

/* ---- other programs ---- */

extern char **environ;

static void starts(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644), status;	/* inherited: no O_CLOEXEC */
	static char data[1 << 18];
	posix_spawn_file_actions_t actions;
	char command[64];
	char *const echo[] = { "sh", "-c", "echo said", NULL };
	pid_t child;

	fill(data, sizeof(data), 9);
	CHECK(write(fd, data, 70000) == 70000);
	child = vfork();
	if (!child) {
		dup2(fd, 1);
		close(fd);
		execlp("sh", "sh", "-c", "echo vforked; head -c 100000 /dev/zero", (char *)NULL);
		_exit(127);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(write(fd, data, 70000) == 70000);		/* still known here, at the position the child left */
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fd, 1);
	CHECK(!posix_spawnp(&child, "sh", &actions, NULL, echo, environ));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	snprintf(command, sizeof(command), "echo by system >&%d", fd);
	CHECK(!system(command));
	CHECK(write(fd, data, 70000) == 70000);
	child = fork();
	if (!child) {
		char *const none[] = { NULL };

		execle("/bin/sh", "sh", "-c", "exit 3", (char *)NULL, none);
		_exit(127);
	}
	CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
	printf("%lld\n", (long long)lseek(fd, 0, SEEK_CUR));
	fflush(stdout);
	execl("/bin/echo", "echo", "replaced", (char *)NULL);
}

static void *endless(void *path)
{
	static char data[1 << 17];
	int fd = open(path, O_RDWR);

	for (;;)
		CHECK(pread(fd, data, sizeof(data), 0) > 0);
	return NULL;
}

/* Threads are cancelled, forked off and exited from while large requests are under way. */
static void interrupted(const char *path)
{
	static char data[1 << 18];
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644), status;
	pthread_t id;

	CHECK(write(fd, data, sizeof(data)) == sizeof(data));
	for (int i = 0; i < 20; i++) {
		void *result;
		pid_t child;

		CHECK(!pthread_create(&id, NULL, endless, (void *)path));
		usleep(2000);
		child = fork();
		if (!child) {
			CHECK(pread(fd, data, sizeof(data), 0) == sizeof(data));
			fd = open(path, O_RDWR);
			CHECK(write(fd, data, sizeof(data)) == sizeof(data));
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		CHECK(!pthread_cancel(id) && !pthread_join(id, &result) && result == PTHREAD_CANCELED);
		CHECK(pread(fd, data, sizeof(data), 0) == sizeof(data));
	}
	CHECK(!pthread_create(&id, NULL, endless, (void *)path));
	printf("well\n");
}

/* A filter of system calls, as sandboxes have: of those that a program without the shim needs, and no other. */
static void filtered(const char *path)
{
	static char data[1 << 18];
	static const int allowed[] = {
		SYS_read, SYS_write, SYS_pread64, SYS_pwrite64, SYS_lseek, SYS_fsync, SYS_close, SYS_fstat,
#ifdef SYS_newfstatat
		SYS_newfstatat,
#endif
		SYS_exit_group,
	};
	struct sock_filter steps[2 * sizeof(allowed) / sizeof(allowed[0]) + 2];
	struct sock_fprog filter = { 0, steps };
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);

	fill(data, sizeof(data), 1);
	CHECK(write(fd, data, sizeof(data)) == sizeof(data));
	printf("filtered\n");
	fflush(stdout);
	steps[filter.len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++) {
		steps[filter.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)allowed[i], 0, 1);
		steps[filter.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	steps[filter.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL);
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
	CHECK(write(fd, data, sizeof(data)) == sizeof(data));
	CHECK(pread(fd, data, sizeof(data), 0) == sizeof(data));
	CHECK(!fsync(fd) && !close(fd));
	_exit(0);
}

/* ---- requests as the kernel would judge them ---- */

static void edges(const char *path)
{
	static char data[1 << 19] __attribute__((aligned(4096)));
	struct rlimit limit = { 1 << 20, RLIM_INFINITY };
	ssize_t (*volatile writes)(int, const void *, size_t) = write;	/* the compiler need not know */
	ssize_t (*volatile reads)(int, void *, size_t) = read;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	off_t half;

	fill(data, sizeof(data), 1);
	CHECK(write(fd, data, sizeof(data)) == sizeof(data) && lseek(fd, 0, SEEK_SET) == 0);
	/* lengths that no memory has */
	printf("%zd", writes(fd, data, (size_t)-5));
	printf(" %d", errno);
	printf(" %zd", reads(fd, data, (size_t)-1));
	printf(" %d %lld\n", errno, (long long)lseek(fd, 0, SEEK_CUR));
	/* up to the largest size allowed: a short request, and no signal (SIGXFSZ would end the program) */
	CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
	half = (1 << 20) - 100;
	printf("%zd", pwrite(fd, data, sizeof(data), half));
	printf(" %zd", pwrite(fd, data, sizeof(data), half - 4096));
	CHECK(lseek(fd, half, SEEK_SET) == half);
	printf(" %zd %lld\n", write(fd, data, sizeof(data)), (long long)lseek(fd, 0, SEEK_CUR));
}

/* Many vectors: whole pages, parts of pages, whole pages in memory that is not aligned, and all of these in one row. */
static void rows(const char *path)
{
	enum { ROWS = 300 };
	static char data[ROWS * 8192] __attribute__((aligned(4096))), back[sizeof(data)] __attribute__((aligned(4096)));
	static const struct { size_t bytes, shift; } kinds[] = { { 4096, 0 }, { 1000, 0 }, { 4096, 16 }, { 0, 0 }, { 8192, 512 } };
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);

	for (size_t kind = 0; kind <= sizeof(kinds) / sizeof(kinds[0]); kind++) {
		struct iovec there[ROWS], here[ROWS];
		char *next = data;
		ssize_t total = 0;

		for (size_t i = 0; i < ROWS; i++) {
			size_t which = kind < sizeof(kinds) / sizeof(kinds[0]) ? kind : i % 5, bytes = kinds[which].bytes;

			if (kind != 1 && !i)
				next += kinds[which].shift;
			if (next + bytes > data + sizeof(data))
				bytes = 0;
			there[i] = (struct iovec){ next, bytes };
			here[i] = (struct iovec){ back + (next - data), bytes };
			next += bytes;
			total += (ssize_t)bytes;
		}
		for (off_t at = 0; at < 10000; at += 4999) {
			fill(data, sizeof(data), kind * 100 + (uint64_t)at);
			memset(back, 0, sizeof(back));
			CHECK(pwritev(fd, there, ROWS, at) == total);
			CHECK(preadv(fd, here, ROWS, at) == total);
			for (int i = 0; i < ROWS; i++)
				CHECK(!memcmp(here[i].iov_base, there[i].iov_base, there[i].iov_len));
		}
	}
	printf("rows\n");
}

/* A stream that met its end, and then the file grows. */
static void grows(const char *path)
{
	static char data[1 << 19];
	FILE *stream = fopen(path, "w+");
	int fd;

	fill(data, sizeof(data), 1);
	CHECK(fwrite(data, 1, sizeof(data) / 2, stream) == sizeof(data) / 2);
	rewind(stream);
	CHECK(fread(data, 1, sizeof(data), stream) == sizeof(data) / 2 && feof(stream));
	fd = open(path, O_WRONLY | O_APPEND);
	CHECK(write(fd, data, sizeof(data)) == sizeof(data));
	printf("%zu", fread(data, 1, sizeof(data), stream));
	clearerr(stream);
	printf(" %zu %d\n", fread(data, 1, sizeof(data), stream), feof(stream) != 0);
	fclose(stream);
}

static sigjmp_buf out;

static void jumps(int signal)
{
	(void)signal;
	siglongjmp(out, 1);
}

/* A handler leaves fsync() for good, and nothing waits for it afterwards. */
static void left(const char *path)
{
	static char data[1 << 18];
	const struct itimerval soon = { { 0, 2000 }, { 0, 2000 } }, never = { { 0, 0 }, { 0, 0 } };
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	volatile int seen = 0;

	fill(data, sizeof(data), 1);
	CHECK(signal(SIGALRM, jumps) != SIG_ERR);
	while (seen < 5) {
		CHECK(pwrite(fd, data, sizeof(data), 0) == sizeof(data));
		if (sigsetjmp(out, 1)) {
			setitimer(ITIMER_REAL, &never, NULL);
			seen++;
			continue;
		}
		setitimer(ITIMER_REAL, &soon, NULL);
		for (;;) {
			CHECK(pwrite(fd, data, 100, 0) == 100);
			CHECK(!fsync(fd));
		}
	}
	signal(SIGALRM, SIG_DFL);
	alarm(20);
	CHECK(!close(fd));	/* for ever, if it waited for those */
	printf("closed\n");
}

int main(int count, char **words)
{
	static const struct { const char *name; void (*run)(const char *path); } all[] = {
		{ "fuzz", fuzz }, { "threads", threads }, { "readers", readers }, { "forked", forked },
		{ "handler", handler }, { "locks", locks }, { "numbers", numbers }, { "mapped", mapped },
		{ "errors", errors }, { "starts", starts }, { "interrupted", interrupted },
		{ "filtered", filtered }, { "edges", edges }, { "rows", rows }, { "left", left },
		{ "grows", grows },
	};

	state = count > 3 ? strtoull(words[3], NULL, 10) * 0x9e3779b97f4a7c15ull + 1 : 88172645463325252ull;
	for (size_t i = 0; count > 2 && i < sizeof(all) / sizeof(all[0]); i++) {
		if (strcmp(all[i].name, words[1]))
			continue;
		all[i].run(words[2]);
		return 0;
	}
	fprintf(stderr, "usage: %s WHAT FILE [SEED]\n", words[0]);
	return 2;
}
