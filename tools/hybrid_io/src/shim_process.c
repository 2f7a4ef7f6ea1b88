/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes: forked, started, ended.
 *
 * A child of fork shares positions with its parent: from then on both leave requests at a position to the kernel. A
 * program that is started inherits descriptors without close-on-exec. Its environment is not changed, so that one with an
 * environment of its own runs without the shim (which is counted; the option "follow" adds the shim). LD_PRELOAD is
 * removed only for programs that cannot load the shim: with another C library, or of another architecture, for which the
 * loader prints an error.
 *
 * Between vfork and exec all of this runs in the child on the parent's memory: it allocates nothing, and writes there only
 * what the parent needs.
 */
#include "shim.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <string.h>

#define ROOM 2048		/* bytes for one variable */
#define MOST_VARIABLES 8192

extern char **environ;

enum kind { COVERED, PLAIN, FOREIGN };

static uint16_t machine;

static enum kind kind_of_elf(const char *head, size_t got)
{
	const ElfW(Ehdr) *elf = (const void *)head;
	const ElfW(Phdr) *part;

	if (elf->e_ident[EI_CLASS] != ELFCLASS64 || elf->e_machine != machine)
		return FOREIGN;
	for (unsigned int i = 0; i < elf->e_phnum; i++) {
		if (elf->e_phoff + (i + 1) * sizeof(*part) > got)
			return COVERED;	/* unusual: left to the loader */
		part = (const void *)(head + elf->e_phoff + i * sizeof(*part));
		if (part->p_type != PT_INTERP)
			continue;
		if (part->p_offset + part->p_filesz > got || !part->p_filesz)
			return COVERED;
#ifdef __GLIBC__
		return memmem(head + part->p_offset, part->p_filesz, "musl", 4) ? FOREIGN : COVERED;
#else
		return memmem(head + part->p_offset, part->p_filesz, "musl", 4) ? COVERED : FOREIGN;
#endif
	}
	return PLAIN;		/* static */
}

/*
 * Examines the program that `path` starts; of a script, its interpreter, whose path is stored in `room`. The depth is
 * limited, since the stack may be small.
 */
static enum kind kind_of(char *path, size_t room)
{
	union { char text[2048]; ElfW(Ehdr) header; } head;
	struct stat about;
	ssize_t got;
	size_t length;
	char *name;
	int fd;

	for (int depth = 0; depth < 4; depth++) {
		fd = k_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
		if (fd < 0)
			return COVERED;	/* unreadable or missing: exec reports it */
		got = k_fstat(fd, &about) || !S_ISREG(about.st_mode) ? -1 : k_read(fd, head.text, sizeof(head.text) - 1);
		k_close(fd);
		if (got < 4)
			return COVERED;
		if ((about.st_mode & S_ISUID && about.st_uid != getuid()) ||
		    (about.st_mode & S_ISGID && about.st_gid != getgid()))
			return PLAIN;	/* the loader ignores LD_PRELOAD there */
		head.text[got] = '\0';
		if (memcmp(head.text, "#!", 2)) {
			if ((size_t)got < sizeof(head.header) || memcmp(head.text, ELFMAG, SELFMAG))
				return COVERED;
			return kind_of_elf(head.text, (size_t)got);
		}
		name = head.text + 2 + strspn(head.text + 2, " \t");
		length = strcspn(name, " \t\r\n");
		if (!length || length >= room)
			return COVERED;
		memcpy(path, name, length);
		path[length] = '\0';
	}
	return COVERED;
}

/* Searches the PATH as the shell does: the first executable file. */
static enum kind kind_of_command(const char *name, bool search)
{
	const char *folders = getenv("PATH");
	char path[1024];
	size_t length, tail = strlen(name);

	if (tail >= sizeof(path))
		return COVERED;
	if (!search || strchr(name, '/')) {
		memcpy(path, name, tail + 1);
		return kind_of(path, sizeof(path));
	}
	for (folders = folders ? folders : "/bin:/usr/bin"; *folders; folders += length + (folders[length] == ':')) {
		length = strcspn(folders, ":");
		if (!length || length + tail + 2 > sizeof(path))
			continue;
		memcpy(path, folders, length);
		path[length] = '/';
		memcpy(path + length + 1, name, tail + 1);
		if (!syscall(SYS_faccessat, AT_FDCWD, path, X_OK))
			return kind_of(path, sizeof(path));
	}
	return COVERED;
}

static size_t variables(char *const *environment)
{
	size_t count = 0;

	while (environment && environment[count] && count < MOST_VARIABLES)
		count++;
	return count;
}

static char *const *variable(char *const *environment, const char *name)
{
	size_t length = strlen(name);

	for (; environment && *environment; environment++)
		if (!strncmp(*environment, name, length) && (*environment)[length] == '=')
			return environment;
	return NULL;
}

/* Whether the environment has a variable with the name of `setting` (NAME=value). */
static bool has(char *const *environment, const char *setting)
{
	size_t length = strcspn(setting, "=") + 1;

	for (; environment && *environment; environment++)
		if (!strncmp(*environment, setting, length))
			return true;
	return false;
}

struct start {
	char *const *environment;	/* for the program */
	char preload[ROOM];
};

#define PRELOAD "LD_PRELOAD"

/* Returns the shim's path within the value, or NULL. */
static const char *ours_in(const char *value)
{
	size_t length = strlen(shim.library);
	const char *at = length ? strstr(value, shim.library) : NULL;

	for (; at; at = strstr(at + 1, shim.library))
		if ((at == value || strchr(": =", at[-1])) && (!at[length] || strchr(": ", at[length])))
			return at;
	return NULL;
}

/*
 * Returns the environment to start `path` with: the caller's, or `row` (which has space for all of it and four more) if
 * LD_PRELOAD must be removed or, with "follow", added.
 */
static void prepare(struct start *start, const char *path, bool search, char *const *environment, char **row)
{
	char *const *at = variable(environment, PRELOAD);
	const char *ours = at ? ours_in(*at + sizeof(PRELOAD)) : NULL;
	enum kind kind = kind_of_command(path, search);
	size_t count = variables(environment), length = strlen(shim.library);

	start->environment = environment;
	if (kind == FOREIGN && ours && strlen(*at) < ROOM) {
		size_t before = (size_t)(ours - *at);

		memcpy(start->preload, *at, before);
		strcpy(start->preload + before, ours + length + strspn(ours + length, ": "));
	} else if (kind == COVERED && !ours && shim.follow && length + (at ? strlen(*at) : 0) + 16 < ROOM) {
		strcpy(start->preload, PRELOAD "=");
		strcat(start->preload, shim.library);
		if (at && (*at)[sizeof(PRELOAD)]) {
			strcat(start->preload, ":");
			strcat(start->preload, *at + sizeof(PRELOAD));
		}
		ours = start->preload;
	} else {
		row = NULL;
	}
	if (row && count < MOST_VARIABLES) {
		memcpy(row, environment, count * sizeof(*row));
		row[at ? (size_t)(at - environment) : count++] = start->preload;
		for (int i = 0; kind == COVERED && i < 2; i++)
			if (*shim.settings[i] && !has(environment, shim.settings[i]))
				row[count++] = shim.settings[i];
		row[count] = NULL;
		start->environment = row;
	}
	__atomic_fetch_add(&shim_counters->execs, 1, __ATOMIC_RELAXED);
	if (kind != COVERED || !ours)
		__atomic_fetch_add(&shim_counters->uncovered, 1, __ATOMIC_RELAXED);
}

#define ROW(environment) char *row[variables(environment) + 5]

/* Called before exec: descriptors are inherited, and this program may end. */
static void before_exec(void)
{
	if (!shim_active())
		shim_share_all(true);
	else
		shim_count_final();
}

static int run(const char *path, bool search, char *const argv[], char *const environment[])
{
	struct start start = { .environment = environment };
	int saved = errno;
	ROW(environment);

	if (!shim.off) {
		if (path)
			prepare(&start, path, search, environment, row);
		before_exec();
	}
	errno = saved;
	if (search)
		return SHIM_CALL(execvpe)(path, argv, start.environment);
	return SHIM_CALL(execve)(path, argv, start.environment);
}

SHIM_API int execve(const char *path, char *const argv[], char *const environment[])
{
	return run(path, false, argv, environment);
}

SHIM_API int execv(const char *path, char *const argv[])
{
	return run(path, false, argv, environ);
}

SHIM_API int execvp(const char *name, char *const argv[])
{
	return run(name, true, argv, environ);
}

SHIM_API int execvpe(const char *name, char *const argv[], char *const environment[])
{
	return run(name, true, argv, environment);
}

/* The variants with a list of arguments: counted, then copied to an array. */
#define LISTED(path, search, first, environment_after)                                                                \
	do {                                                                                                          \
		va_list more, again;                                                                                  \
		size_t count = 1;                                                                                     \
		char *const *environment = environ;                                                                   \
		const char *volatile any = first; /* declared nonnull, which not all callers respect */               \
		va_start(more, first);                                                                                \
		va_copy(again, more);                                                                                 \
		if (any)                                                                                              \
			while (va_arg(again, char *))                                                                 \
				count++;                                                                              \
		else                                                                                                  \
			count = 0;                                                                                    \
		va_end(again);                                                                                        \
		char *argv[count + 1];                                                                                \
		argv[0] = (char *)(uintptr_t)first;                                                                   \
		for (size_t i = 1; i <= count; i++)                                                                   \
			argv[i] = va_arg(more, char *);                                                               \
		argv[count] = NULL;                                                                                   \
		if (environment_after)                                                                                \
			environment = va_arg(more, char *const *);                                                    \
		va_end(more);                                                                                         \
		return run(path, search, argv, environment);                                                          \
	} while (0)

SHIM_API int execl(const char *path, const char *first, ...)
{
	LISTED(path, false, first, false);
}

SHIM_API int execlp(const char *name, const char *first, ...)
{
	LISTED(name, true, first, false);
}

SHIM_API int execle(const char *path, const char *first, ...)
{
	LISTED(path, false, first, true);
}

SHIM_API int fexecve(int fd, char *const argv[], char *const environment[])
{
	if (!shim.off)
		before_exec();
	return SHIM_CALL(fexecve)(fd, argv, environment);
}

SHIM_API int execveat(int directory, const char *path, char *const argv[], char *const environment[], int flags)
{
	if (!shim.off)
		before_exec();
	return shim_next.execveat ? shim_next.execveat(directory, path, argv, environment, flags) :
				    (int)syscall(SYS_execveat, directory, path, argv, environment, flags);
}

static int spawn(pid_t *pid, const char *path, bool search, const posix_spawn_file_actions_t *actions,
		 const posix_spawnattr_t *attributes, char *const argv[], char *const environment[])
{
	struct start start = { .environment = environment };
	int saved = errno;
	ROW(environment);

	if (shim_active()) {
		shim_share_all(true);
		prepare(&start, path, search, environment, row);
	}
	errno = saved;
	if (search)
		return SHIM_CALL(posix_spawnp)(pid, path, actions, attributes, argv, start.environment);
	return SHIM_CALL(posix_spawn)(pid, path, actions, attributes, argv, start.environment);
}

SHIM_API int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
			 const posix_spawnattr_t *attributes, char *const argv[], char *const environment[])
{
	return spawn(pid, path, false, actions, attributes, argv, environment);
}

SHIM_API int posix_spawnp(pid_t *pid, const char *name, const posix_spawn_file_actions_t *actions,
			  const posix_spawnattr_t *attributes, char *const argv[], char *const environment[])
{
	return spawn(pid, name, true, actions, attributes, argv, environment);
}

SHIM_API int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int from, int to)
{
	if (shim_active())
		shim_share_position(from);
	return SHIM_CALL(posix_spawn_file_actions_adddup2)(actions, from, to);
}

SHIM_API int system(const char *command)
{
	if (shim_active())
		shim_share_all(true);
	return SHIM_CALL(system)(command);
}

SHIM_API FILE *popen(const char *command, const char *mode)
{
	if (shim_active())
		shim_share_all(true);
	return SHIM_CALL(popen)(command, mode);
}

SHIM_API void _exit(int status)
{
	if (shim_active())
		shim_count_final();
	for (;;)
		syscall(SYS_exit_group, status);
}

SHIM_API void _Exit(int status)
{
	_exit(status);
}

static void before_fork(void)
{
	if (shim_active())
		shim_share_all(false);
}

static void in_child(void)
{
	if (shim.off)
		return;
	shim.pid = (int)syscall(SYS_getpid);
	shim_table_forked();
	shim_count_forked();
}

void shim_started(void)
{
	Dl_info about;

	if (dladdr(&machine, &about) && about.dli_fbase)
		machine = ((const ElfW(Ehdr) *)about.dli_fbase)->e_machine;
	pthread_atfork(before_fork, NULL, in_child);
}
