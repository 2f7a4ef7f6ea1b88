/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server of HTTP on loopback, which works some 50 us per request, and a client with one connection: each request is a
 * wait of the server in epoll_wait.
 *   usage: http_server CPU CPU   (where server and client are pinned)
 * Per line "serve N" of standard input, N requests and one line "N CPU_NS WALL_NS" (CPU time of the server).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WORK 40000	/* turns of a hash */

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

/* Sends as many requests as each number that is read from `orders`. */
static void client(const struct sockaddr_in *address, int orders)
{
	const char request[] = "GET /predict?id=1 HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";
	int connection = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	char answer[4096];
	long n;

	setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(connection, (const struct sockaddr *)address, sizeof(*address)))
		_exit(1);
	while (read(orders, &n, sizeof(n)) == sizeof(n))
		for (long i = 0; i < n; i++)
			if (write(connection, request, sizeof(request) - 1) < 0 || read(connection, answer, sizeof(answer)) <= 0)
				_exit(1);
	_exit(0);
}

static int answer(int connection)
{
	unsigned long long hash = 0xcbf29ce484222325ULL;
	char request[4096], body[64], reply[256];
	ssize_t got = read(connection, request, sizeof(request) - 1);
	int size;

	if (got <= 0)
		return 1;
	request[got] = 0;
	if (!strstr(request, "\r\n\r\n"))
		return 1;
	for (long i = 0; i < WORK; i++)
		hash = (hash ^ (unsigned char)request[i % got]) * 0x100000001b3ULL;
	size = snprintf(body, sizeof(body), "{\"id\": 1, \"value\": %llu}", hash);
	size = snprintf(reply, sizeof(reply), "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			size, body);
	return write(connection, reply, size) != size;
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int listening = socket(AF_INET, SOCK_STREAM, 0), orders[2], connection, poll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	char line[64];
	pid_t child;
	long n;

	if (argc != 3 || pipe(orders) || bind(listening, (struct sockaddr *)&address, length) || listen(listening, 1)
	    || getsockname(listening, (struct sockaddr *)&address, &length))
		return 2;
	child = fork();
	if (child < 0)
		return 1;
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin(atoi(argv[2]));
		client(&address, orders[0]);
	}
	pin(atoi(argv[1]));
	connection = accept(listening, 0, 0);
	if (connection < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, connection, &event))
		return 1;
	while (fgets(line, sizeof(line), stdin)) {
		long long cpu, wall;

		if (sscanf(line, "serve %ld", &n) != 1 || write(orders[1], &n, sizeof(n)) != sizeof(n))
			return 2;
		wall = now(CLOCK_MONOTONIC);
		cpu = now(CLOCK_PROCESS_CPUTIME_ID);
		for (long i = 0; i < n; i++)
			if (epoll_wait(poll, &event, 1, -1) != 1 || answer(connection))
				return 1;
		cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
		wall = now(CLOCK_MONOTONIC) - wall;
		printf("%ld %lld %lld\n", n, cpu, wall);
		fflush(stdout);
	}
	return 0;
}
