/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Use of the page cache: of the cgroup and its limited ancestors (v1 and v2), or of the host if none has a limit. The files
 * stay open and are read with pread, about 20 us in all; every second, moves of the process and new limits are detected.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define LEVELS 4			/* most limited ancestors that are read, smallest limits first */
#define MOVED_NS 1000000000ull
#define STAT_BYTES 16384

struct level {
	uint64_t limit;
	struct hy_own_fd stat, usage;
};

static struct {
	pthread_mutex_t lock;		/* held by the thread that reads; others use the last values */
	pthread_mutex_t known_lock;
	struct hy_pressure known;
	uint64_t moved;			/* bytes since */
	uint64_t found_ns;
	char membership[PATH_MAX];	/* our cgroup at found_ns */
	uint64_t membership_limit;
	uint32_t version, levels;
	struct level level[LEVELS];
	struct hy_own_fd meminfo;
	char text[STAT_BYTES];
} state = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.known_lock = PTHREAD_MUTEX_INITIALIZER,
	.level = { [0 ... LEVELS - 1] = { .stat.fd = -1, .usage.fd = -1 } },
	.meminfo.fd = -1,
};

/* Moves a descriptor to `least` or above, if the limit allows: programs may rely on low numbers. */
int hy_own_fd_take(struct hy_own_fd *own, int fd, int least)
{
	struct stat about;
	int high = fd;

	if (fd < 0)
		return -1;
	if (fd < least) {
		high = k_dup_above(fd, least);
		if (high < 0)
			high = k_dup_above(fd, 3);
		k_close(fd);
		if (high < 0)
			return -1;
	}
	if (k_fstat(high, &about)) {
		k_close(high);
		return -1;
	}
	*own = (struct hy_own_fd){ high, about.st_dev, about.st_ino };
	return high;
}

bool hy_own_fd_valid(const struct hy_own_fd *own)
{
	struct stat about;

	return own->fd >= 0 && !k_fstat(own->fd, &about) && about.st_dev == own->dev && about.st_ino == own->ino;
}

void hy_own_fd_close(struct hy_own_fd *own)
{
	if (hy_own_fd_valid(own))
		k_close(own->fd);
	own->fd = -1;
}

/* Reads a whole small file, ended by a NUL; returns -1 on an error. */
static ssize_t text_of(const char *path, char *text, size_t bytes)
{
	int fd = k_open(path, O_RDONLY | O_CLOEXEC, 0);
	size_t total = 0;
	ssize_t got = 0;

	if (fd < 0)
		return -1;
	while (total < bytes - 1 && (got = k_read(fd, text + total, bytes - 1 - total)) > 0)
		total += (size_t)got;
	k_close(fd);
	text[total] = '\0';
	return got < 0 ? -1 : (ssize_t)total;
}

/* Returns the number after `name` and blanks at the start of a line. */
static bool number_of(const char *text, const char *name, uint64_t *value)
{
	size_t length = strlen(name);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		if (*line == '\n')
			line++;
		if (strncmp(line, name, length) || (line[length] != ' ' && line[length] != '\t'))
			continue;
		*value = strtoull(line + length, NULL, 10);
		return true;
	}
	return false;
}

static bool read_text(struct hy_own_fd *own, char *text, size_t bytes)
{
	ssize_t got = hy_own_fd_valid(own) ? k_pread(own->fd, text, bytes - 1, 0) : -1;

	text[got > 0 ? got : 0] = '\0';
	return got > 0;
}

static void forget(void)
{
	for (uint32_t i = 0; i < LEVELS; i++) {
		hy_own_fd_close(&state.level[i].stat);
		hy_own_fd_close(&state.level[i].usage);
	}
	state.levels = 0;
	state.version = 0;
}

/* Reads our path in the hierarchy of the memory controller from /proc/self/cgroup; returns its version, or 0. */
static uint32_t our_cgroup(char *path, size_t bytes)
{
	char *line, *rest, unified[PATH_MAX] = "";

	path[0] = '\0';
	if (text_of("/proc/self/cgroup", state.text, sizeof(state.text)) <= 0)
		return 0;
	for (line = strtok_r(state.text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *names = strchr(line, ':'), *where = names ? strchr(names + 1, ':') : NULL, *name, *more;

		if (!where)
			continue;
		*where++ = '\0';
		if (!names[1])
			snprintf(unified, sizeof(unified), "%s", where);
		for (name = strtok_r(names + 1, ",", &more); name; name = strtok_r(NULL, ",", &more)) {
			if (strcmp(name, "memory"))
				continue;
			snprintf(path, bytes, "%s", where);
			return 1;
		}
	}
	snprintf(path, bytes, "%s", unified);
	return unified[0] ? 2 : 0;
}

/* Decodes \ooo, as mountinfo encodes blanks. */
static void unescape(char *text)
{
	char *to = text;

	for (; *text; text++) {
		if (text[0] == '\\' && text[1] >= '0' && text[1] <= '3' && text[2] && text[3]) {
			*to++ = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
			text += 3;
		} else {
			*to++ = *text;
		}
	}
	*to = '\0';
}

/* Parses a line of mountinfo; returns whether it mounts the hierarchy of `version`, with its root and mount point. */
static bool memory_mount(char *line, uint32_t version, char **root, char **point)
{
	char *dash = strstr(line, " - "), *rest, *type, *options;

	if (!dash)
		return false;
	*dash = '\0';
	type = strtok_r(dash + 3, " ", &rest);
	strtok_r(NULL, " ", &rest);
	options = strtok_r(NULL, " ", &rest);
	if (!type || strcmp(type, version == 1 ? "cgroup" : "cgroup2"))
		return false;
	if (version == 1) {
		bool memory = false;
		char *more, *option = options ? strtok_r(options, ",", &more) : NULL;

		for (; option; option = strtok_r(NULL, ",", &more))
			memory |= !strcmp(option, "memory");
		if (!memory)
			return false;
	}
	strtok_r(line, " ", &rest);
	strtok_r(NULL, " ", &rest);
	strtok_r(NULL, " ", &rest);
	*root = strtok_r(NULL, " ", &rest);
	*point = strtok_r(NULL, " ", &rest);
	if (!*root || !*point)
		return false;
	unescape(*root);
	unescape(*point);
	return true;
}

/*
 * Finds the directory of our cgroup; `top`: length of its mount point. In a container the cgroup may be the root of the
 * mount while /proc/self/cgroup has the host's path, or lie outside of the mount (".."): then the mount's root is used.
 */
static bool our_directory(uint32_t version, const char *path, char *directory, size_t bytes, size_t *top)
{
	int fd = k_open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC, 0);
	size_t held = 0;
	bool found = false;
	ssize_t got;

	if (fd < 0)
		return false;
	/* line by line: there may be thousands of mounts */
	while (!found && (got = k_read(fd, state.text + held, sizeof(state.text) - 1 - held)) > 0) {
		char *line = state.text, *end;

		held += (size_t)got;
		state.text[held] = '\0';
		for (; !found && (end = strchr(line, '\n')); line = end + 1) {
			char *root, *point;

			*end = '\0';
			if (!memory_mount(line, version, &root, &point))
				continue;
			size_t length = strcmp(root, "/") ? strlen(root) : 0;
			const char *below = path;

			if (strstr(path, "/.."))
				below = "";
			else if (length && !strncmp(path, root, length) && (!path[length] || path[length] == '/'))
				below = path + length;
			else if (length)
				below = "";
			if (!strcmp(below, "/"))
				below = "";
			*top = strlen(point);
			found = (size_t)snprintf(directory, bytes, "%s%s", point, below) < bytes;
		}
		held -= (size_t)(line - state.text);
		if (held >= sizeof(state.text) - 1)
			held = 0;	/* an overlong line: skipped */
		memmove(state.text, line, held);
	}
	k_close(fd);
	return found;
}

static void open_in(struct hy_own_fd *own, const char *directory, const char *name)
{
	char path[PATH_MAX];

	own->fd = -1;
	if ((size_t)snprintf(path, sizeof(path), "%s/%s", directory, name) < sizeof(path))
		hy_own_fd_take(own, k_open(path, O_RDONLY | O_CLOEXEC, 0), HY_FD_LEAST);
}

static void watch(const char *directory, uint64_t limit)
{
	uint32_t at = state.levels;
	bool v1 = state.version == 1;

	if (at == LEVELS) {	/* full: drop the largest limit */
		at = 0;
		for (uint32_t i = 1; i < LEVELS; i++)
			if (state.level[i].limit > state.level[at].limit)
				at = i;
		if (state.level[at].limit <= limit)
			return;
		hy_own_fd_close(&state.level[at].stat);
		hy_own_fd_close(&state.level[at].usage);
	} else {
		state.levels++;
	}
	state.level[at].limit = limit;
	open_in(&state.level[at].stat, directory, "memory.stat");
	open_in(&state.level[at].usage, directory, v1 ? "memory.usage_in_bytes" : "memory.current");
}

/* Finds the cgroups that limit us; repeated every second, since processes are moved and limits changed. */
static void find_levels(uint64_t memory)
{
	static char path[PATH_MAX], directory[PATH_MAX], file[PATH_MAX + 64];
	uint32_t version = our_cgroup(path, sizeof(path));
	uint64_t limit, sum = 0;
	size_t top;

	if (!version || !our_directory(version, path, directory, sizeof(directory), &top)) {
		forget();
		state.membership[0] = '\0';
		return;
	}
	/* twice: to detect changes, then to open the files */
	for (int opening = 0; opening < 2; opening++) {
		size_t end = strlen(directory);

		if (opening) {
			if (sum == state.membership_limit && !strcmp(path, state.membership))
				return;
			forget();
			state.version = version;
			state.membership_limit = sum;
			snprintf(state.membership, sizeof(state.membership), "%s", path);
		}
		snprintf(file, sizeof(file), "%s", directory);
		for (;;) {
			file[end] = '\0';
			snprintf(file + end, sizeof(file) - end, "/%s",
				 version == 1 ? "memory.limit_in_bytes" : "memory.max");
			limit = UINT64_MAX;
			if (text_of(file, state.text, sizeof(state.text)) > 0 && state.text[0] != 'm')
				limit = strtoull(state.text, NULL, 10);
			file[end] = '\0';
			if (limit < memory) {
				if (opening)
					watch(file, limit);
				else
					sum = sum * 31 + limit + end;
			}
			if (end <= top)
				break;
			while (end > top && directory[end - 1] != '/')
				end--;
			if (end > top)
				end--;
			memcpy(file, directory, end);
		}
	}
}

static void limit_to(const struct hy_policy *policy, struct hy_pressure *pressure, uint64_t cap)
{
	uint64_t room = cap > pressure->other_bytes ? cap - pressure->other_bytes : 0;

	pressure->limit_bytes = policy->limit_bytes ? policy->limit_bytes : (uint64_t)(policy->limit_share * (double)room);
}

static bool look_at(const struct hy_policy *policy, struct level *level, struct hy_pressure *pressure)
{
	uint64_t active, inactive, usage;
	bool v1 = state.version == 1;
	char number[32];

	if (!read_text(&level->stat, state.text, sizeof(state.text)) || !read_text(&level->usage, number, sizeof(number)) ||
	    !number_of(state.text, v1 ? "total_active_file" : "active_file", &active) ||
	    !number_of(state.text, v1 ? "total_inactive_file" : "inactive_file", &inactive))
		return false;
	usage = strtoull(number, NULL, 10);
	pressure->cached_bytes = active + inactive;
	pressure->active_bytes = active;
	pressure->other_bytes = usage > pressure->cached_bytes ? usage - pressure->cached_bytes : 0;
	limit_to(policy, pressure, level->limit);
	return true;
}

static void look(const struct hy_policy *policy, struct hy_pressure *pressure)
{
	uint64_t total = 0, free_kib = 0, active = 0, inactive = 0, now = hy_now_ns();
	struct hy_pressure best = { 0 };
	bool any = false;

	*pressure = (struct hy_pressure){ .cgroup_limit_bytes = UINT64_MAX, .read_at_ns = now };
	if (!hy_own_fd_valid(&state.meminfo))
		hy_own_fd_take(&state.meminfo, k_open("/proc/meminfo", O_RDONLY | O_CLOEXEC, 0), HY_FD_LEAST);
	if (read_text(&state.meminfo, state.text, sizeof(state.text))) {
		number_of(state.text, "MemTotal:", &total);
		number_of(state.text, "MemFree:", &free_kib);
		number_of(state.text, "Active(file):", &active);
		number_of(state.text, "Inactive(file):", &inactive);
	}
	pressure->memory_bytes = total << 10;
	pressure->cached_bytes = (active + inactive) << 10;
	pressure->active_bytes = active << 10;
	if (total > free_kib + active + inactive)
		pressure->other_bytes = (total - free_kib - active - inactive) << 10;
	limit_to(policy, pressure, pressure->memory_bytes);

	if (!state.found_ns || now - state.found_ns > MOVED_NS) {
		find_levels(pressure->memory_bytes);
		hy_history_expire();
		state.found_ns = now;
	}
	for (uint32_t i = 0; i < state.levels; i++) {
		struct hy_pressure here = *pressure;

		if (!look_at(policy, &state.level[i], &here)) {
			state.found_ns = 0;	/* removed, or closed by the program: find it again next time */
			state.membership[0] = '\0';
			continue;
		}
		if (pressure->cgroup_limit_bytes > state.level[i].limit)
			pressure->cgroup_limit_bytes = state.level[i].limit;
		/* the cgroup with the least space left decides */
		if (!any || (int64_t)(here.limit_bytes - here.cached_bytes) < (int64_t)(best.limit_bytes - best.cached_bytes))
			best = here;
		any = true;
	}
	if (any) {
		best.cgroup_limit_bytes = pressure->cgroup_limit_bytes;
		best.cgroup_version = state.version;
		*pressure = best;
	}
	hy_add(&hy_counters()->pressure_reads, 1);
}

static void look_and_tell(const struct hy_policy *policy, struct hy_pressure *pressure)
{
	int before = errno;

	look(policy, pressure);
	pressure->own_bytes = hy_history_kept();
	pthread_mutex_lock(&state.known_lock);
	state.known = *pressure;
	pthread_mutex_unlock(&state.known_lock);
	__atomic_store_n(&state.moved, 0, __ATOMIC_RELAXED);
	errno = before;
}

void hy_pressure_get(const struct hy_policy *policy, struct hy_pressure *pressure)
{
	bool old;

	pthread_mutex_lock(&state.known_lock);
	*pressure = state.known;
	pthread_mutex_unlock(&state.known_lock);
	old = !pressure->read_at_ns || hy_now_ns() - pressure->read_at_ns > policy->refresh_ns ||
	      __atomic_load_n(&state.moved, __ATOMIC_RELAXED) > policy->refresh_bytes;
	if (old && !pthread_mutex_trylock(&state.lock)) {
		look_and_tell(policy, pressure);
		pthread_mutex_unlock(&state.lock);
	} else if (!pressure->read_at_ns) {	/* nothing is known yet; another thread is reading it */
		pthread_mutex_lock(&state.lock);
		pthread_mutex_unlock(&state.lock);
		pthread_mutex_lock(&state.known_lock);
		*pressure = state.known;
		pthread_mutex_unlock(&state.known_lock);
	}
	pressure->own_bytes = hy_history_kept();
	/* shares are of this file's policy, the values common to all */
	limit_to(policy, pressure, pressure->cgroup_limit_bytes < pressure->memory_bytes ?
		 pressure->cgroup_limit_bytes : pressure->memory_bytes);
}

void hy_pressure_now(struct hy_pressure *pressure)
{
	struct hy_policy policy;

	hy_policy_default(&policy);
	pthread_mutex_lock(&state.lock);
	state.found_ns = 0;
	look_and_tell(&policy, pressure);
	pthread_mutex_unlock(&state.lock);
}

void hy_pressure_moved(uint64_t bytes)
{
	__atomic_fetch_add(&state.moved, bytes, __ATOMIC_RELAXED);
}

/* Taken around fork, so that no other thread is reading. Open files stay open in the child. */
void hy_pressure_before_fork(void)
{
	pthread_mutex_lock(&state.lock);
	pthread_mutex_lock(&state.known_lock);
}

void hy_pressure_forked(bool child)
{
	if (child) {
		state.found_ns = 0;
		state.known.read_at_ns = 0;
	}
	pthread_mutex_unlock(&state.known_lock);
	pthread_mutex_unlock(&state.lock);
}
