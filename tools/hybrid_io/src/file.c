/* SPDX-License-Identifier: Apache-2.0 */
/* Open, adopt and close files, and all operations on them that transfer no data. */
#include <string.h>

#include "internal.h"

static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hy_file *files;
static struct hy_file *unused;	/* never freed: the shim may read members of a file being closed */

static struct hy_file *new_file(void)
{
	struct hy_file *file;

	pthread_mutex_lock(&files_lock);
	file = unused;
	if (file)
		unused = file->next;
	pthread_mutex_unlock(&files_lock);
	if (!file)
		return hy_memory(sizeof(*file));
	memset(file, 0, sizeof(*file));
	file->direct.fd = -1;
	return file;
}

static void free_file(struct hy_file *file)
{
	pthread_mutex_lock(&files_lock);
	file->next = unused;
	unused = file;
	pthread_mutex_unlock(&files_lock);
}

static void each_is_shared(void)
{
	for (struct hy_file *file = files; file; file = file->next)
		__atomic_fetch_or(&file->flags, HY_F_SHARED, __ATOMIC_RELAXED);
}

static void locks(struct hy_file *file)
{
	pthread_mutexattr_t kind;

	/* fails, instead of a deadlock, in a signal handler that interrupted its own thread's request */
	pthread_mutexattr_init(&kind);
	pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
	pthread_mutex_init(&file->position, &kind);
	pthread_mutex_init(&file->opening, &kind);
	pthread_mutexattr_destroy(&kind);
}

/* Parent and child share positions from now on. Locks are taken in the engine's order. */
static void before_fork(void)
{
	pthread_mutex_lock(&files_lock);
	hy_pressure_before_fork();
	hy_history_lock();
	each_is_shared();
}

static void in_parent(void)
{
	hy_history_unlock();
	hy_pressure_forked(false);
	pthread_mutex_unlock(&files_lock);
}

static void in_child(void)
{
	for (struct hy_file *file = files; file; file = file->next)
		locks(file);	/* the threads that held them do not exist in the child */
	hy_counters_forked();
	hy_history_unlock();
	hy_pressure_forked(true);
	pthread_mutex_unlock(&files_lock);
}

__attribute__((constructor)) static void start(void)
{
	pthread_atfork(before_fork, in_parent, in_child);
}

static struct hy_file *look_after(int fd, int flags, bool adopted, bool direct, const struct hy_policy *policy)
{
	struct hy_file *file = new_file();
	struct stat about;
	uint64_t least;

	if (!file)
		return NULL;
	if (k_fstat(fd, &about)) {
		free_file(file);
		return NULL;
	}
	file->fd = fd;
	file->adopted = adopted;
	file->open_flags = flags;
	file->dev = about.st_dev;
	file->ino = about.st_ino;
	file->policy = *policy;
	locks(file);
	hy_direct_learn(file, &about);
	file->inode = hy_history_attach(&about);
	hy_passing_start(file, adopted ? (uint64_t)k_lseek(fd, 0, SEEK_CUR) : 0, (uint64_t)about.st_size);
	if (!file->direct_align)
		file->flags |= HY_F_UNSUPPORTED;
	if (flags & O_APPEND)
		file->flags |= HY_F_APPEND;
	if (direct)
		file->flags |= HY_F_CALLER_DIRECT;
	least = policy->read_direct_bytes < policy->write_direct_bytes ? policy->read_direct_bytes :
		policy->write_direct_bytes;
	if (policy->pressure_direct_bytes < least)
		least = policy->pressure_direct_bytes;
	file->least = direct || policy->mode == HY_ALWAYS_DIRECT ? 1 : least;

	pthread_mutex_lock(&files_lock);
	file->next = files;
	file->link = &files;
	if (files)
		files->link = &file->next;
	files = file;
	pthread_mutex_unlock(&files_lock);
	hy_add(&hy_counters()->files, 1);
	return file;
}

static const struct hy_policy *chosen(const struct hy_policy *policy, struct hy_policy *ours)
{
	if (!policy) {
		hy_policy_default(ours);
		return ours;
	}
	if (hy_policy_ok(policy))
		return policy;
	errno = EINVAL;
	return NULL;
}

struct hy_file *hy_open(const char *path, int flags, mode_t mode, const struct hy_policy *policy)
{
	struct hy_policy ours;
	struct hy_file *file;
	int fd, failed;

	policy = chosen(policy, &ours);
	if (!policy)
		return NULL;
	fd = k_open(path, flags & ~O_DIRECT, mode);
	if (fd < 0)
		return NULL;
	file = look_after(fd, flags & ~O_DIRECT, false, flags & O_DIRECT, policy);
	if (!file) {
		failed = errno;
		k_close(fd);
		errno = failed;
	}
	return file;
}

struct hy_file *hy_adopt(int fd, const struct hy_policy *policy)
{
	struct hy_policy ours;
	int flags;

	policy = chosen(policy, &ours);
	flags = policy ? k_getfl(fd) : -1;
	if (flags < 0)
		return NULL;
	return look_after(fd, flags, true, flags & O_DIRECT, policy);
}

int hy_close(struct hy_file *file)
{
	int failed = 0;

	hy_passing_close(file);
	pthread_mutex_lock(&files_lock);
	*file->link = file->next;
	if (file->next)
		file->next->link = file->link;
	pthread_mutex_unlock(&files_lock);
	hy_history_detach(file->inode);
	hy_direct_close(file);
	if (!file->adopted && k_close(file->fd) && !failed)
		failed = errno;
	pthread_mutex_destroy(&file->position);
	pthread_mutex_destroy(&file->opening);
	free_file(file);
	if (!failed)
		return 0;
	hy_count_error();
	errno = failed;
	return -1;
}

/* Visits all files but `except` until one returns true; false also if another thread holds the list. */
bool hy_file_each_other(struct hy_file *except, bool (*visit)(struct hy_file *file))
{
	bool enough = false;

	if (pthread_mutex_trylock(&files_lock))
		return false;
	for (struct hy_file *file = files; file && !enough; file = file->next)
		enough = file != except && visit(file);
	pthread_mutex_unlock(&files_lock);
	return enough;
}

int hy_fileno(const struct hy_file *file)
{
	return file->fd;
}

off_t hy_seek(struct hy_file *file, off_t offset, int whence)
{
	bool locked = !pthread_mutex_lock(&file->position);
	off_t at = k_lseek(file->fd, offset, whence);

	if (at >= 0)
		hy_passing_seek(file, (uint64_t)at);
	if (locked)
		pthread_mutex_unlock(&file->position);
	return at;
}

int hy_truncate(struct hy_file *file, off_t bytes)
{
	return k_ftruncate(file->fd, bytes);
}

int hy_sync(struct hy_file *file, int data_only)
{
	int done = data_only ? k_fdatasync(file->fd) : k_fsync(file->fd);

	if (done)
		hy_count_error();
	return done;
}

void hy_mark(struct hy_file *file, uint32_t flags)
{
	__atomic_fetch_or(&file->flags, flags & (HY_F_SHARED | HY_F_MAPPED), __ATOMIC_RELAXED);
}

int hy_status(const struct hy_file *file, struct hy_status *status)
{
	struct stat about;
	int64_t resident = -1;

	if (!k_fstat(file->fd, &about) && S_ISREG(about.st_mode))
		resident = hy_resident(file->fd, 0, (uint64_t)about.st_size, NULL);
	memset(status, 0, sizeof(*status));
	status->flags = hy_flags(file);
	status->unsupported_errno = __atomic_load_n(&file->unsupported_errno, __ATOMIC_RELAXED);
	if (!(status->flags & HY_F_UNSUPPORTED)) {
		status->direct_align = file->direct_align;
		status->memory_align = file->memory_align;
	}
	status->own_bytes = hy_history_own(file->inode);
	status->cached_bytes = resident > 0 ? (uint64_t)resident : 0;
	for (int op = 0; op < HY_OPS; op++) {
		for (int reason = 0; reason < HY_REASONS; reason++) {
			const struct hy_count *count = &file->by[op][reason];

			status->by[op][reason].requests = __atomic_load_n(&count->requests, __ATOMIC_RELAXED);
			status->by[op][reason].bytes = __atomic_load_n(&count->bytes, __ATOMIC_RELAXED);
		}
	}
	return 0;
}
