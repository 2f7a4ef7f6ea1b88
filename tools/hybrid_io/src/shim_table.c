/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State of descriptors: one byte each, and a box for each file used by the engine.
 *
 * Descriptors may be closed and reused without our notice (C stdio, raw system calls). An outdated byte causes a wrong
 * counter or a buffered request; a box is used only for its inode. All memory is static: malloc is not safe in a signal
 * handler, and a replaced malloc may itself read files.
 */
#include <sched.h>
#include <string.h>

#include "shim.h"
#include "internal.h"

#define BOXES 256		/* most files at one time: each may need another descriptor */
#define INODES 1024

/* The descriptor that the engine opened for this box, or -1. */
static int direct_of(const struct shim_box *box)
{
	return box->used && box->file ? __atomic_load_n(&box->file->direct.fd, __ATOMIC_RELAXED) : -1;
}

uint8_t shim_descriptors[SHIM_DESCRIPTORS];
int shim_highest = -1;

static struct shim_box boxes[BOXES];
uint16_t shim_box_of[SHIM_DESCRIPTORS];
struct shim_stream shim_streams[SHIM_DESCRIPTORS];
int shim_boxes;					/* number of boxes ever used */
static struct { dev_t dev; ino_t ino; uint32_t why; } inodes[INODES];
static uint32_t inodes_used;
static uint32_t every_inode;			/* the table was full: flags that apply to all files */
static int lock_word;

/*
 * Held for a few instructions, and no system calls but those of `sweep`, with signals blocked: a handler never waits for
 * the thread it interrupted.
 */
static void lock(void)
{
	while (__atomic_exchange_n(&lock_word, 1, __ATOMIC_ACQUIRE))
		sched_yield();
}

static void unlock(void)
{
	__atomic_store_n(&lock_word, 0, __ATOMIC_RELEASE);
}

static void reset(int fd, uint8_t value)
{
	__atomic_store_n(&shim_descriptors[fd], value, __ATOMIC_RELAXED);
	if (value && fd > __atomic_load_n(&shim_highest, __ATOMIC_RELAXED))
		__atomic_store_n(&shim_highest, fd, __ATOMIC_RELAXED);
}

enum shim_class shim_learn(int fd)
{
	struct stat about;
	int saved = errno, flags;
	enum shim_class class = SHIM_OTHER;

	if (!k_fstat(fd, &about)) {
		flags = k_getfl(fd);
		if (S_ISREG(about.st_mode) && flags >= 0 && !(flags & O_PATH))
			class = flags & O_DIRECT ? SHIM_DIRECT : SHIM_FILE;
		if (shim_active())
			reset(fd, (uint8_t)((shim_descriptors[fd] & SHIM_OWN) | class));
	}
	errno = saved;
	return class;
}

void shim_opened(int fd)
{
	if ((unsigned int)fd < SHIM_DESCRIPTORS)
		reset(fd, SHIM_OWN);
}

static uint32_t inode_of(const struct stat *about)
{
	uint32_t at = (uint32_t)(about->st_ino * 0x9e3779b97f4a7c15ull >> 40) % INODES;

	while (inodes[at].why && (inodes[at].dev != about->st_dev || inodes[at].ino != about->st_ino))
		at = (at + 1) % INODES;
	return at;
}

/* Removes a box; returns the file, which the caller closes without the lock. */
static struct hy_file *detach(struct shim_box *box)
{
	struct hy_file *file = box->users ? NULL : box->file;

	if (shim_box_of[box->fd] == box - boxes + 1)
		shim_box_of[box->fd] = 0;
	box->retired = true;
	if (!box->users)
		box->used = false;
	return file;
}

static struct shim_box *box_at(int fd)
{
	return shim_box_of[fd] ? &boxes[shim_box_of[fd] - 1] : NULL;
}

/* Removes at most one box of a descriptor that was closed without our notice; continues there the next time. */
static struct hy_file *sweep(void)
{
	struct stat about;

	for (int i = 0; i < shim_boxes; i++) {
		struct shim_box *box = &boxes[i];

		if (!box->used || box->retired || box->users)
			continue;
		if (k_fstat(box->fd, &about) || about.st_dev != box->dev || about.st_ino != box->ino)
			return detach(box);
	}
	return NULL;
}

static struct shim_box *reserve(int fd, const struct stat *about)
{
	for (int i = 0; i < BOXES; i++) {
		struct shim_box *box = &boxes[i];

		if (box->used)
			continue;
		*box = (struct shim_box){ NULL, about->st_dev, about->st_ino, fd, 1, true, false };
		shim_box_of[fd] = (uint16_t)(i + 1);
		if (i >= shim_boxes)
			shim_boxes = i + 1;
		return box;
	}
	return NULL;
}

/* Returns the file of a descriptor for one request, adopted if needed and `adopt`; NULL: leave it to the kernel. */
struct shim_box *shim_take(int fd, const struct stat *about, bool adopt, uint32_t *why)
{
	struct hy_file *stale = NULL, *swept = NULL, *file;
	struct shim_box *box;
	uint32_t at;

	lock();
	at = inode_of(about);
	*why = inodes[at].why | every_inode;
	box = box_at(fd);
	if (box && (box->dev != about->st_dev || box->ino != about->st_ino)) {
		stale = detach(box);
		box = NULL;
	}
	if (*why) {
		box = NULL;
	} else if (box) {
		if (box->file)
			box->users++;
		else
			box = NULL;	/* another thread is adopting it */
	} else if (adopt) {
		swept = sweep();
		box = reserve(fd, about);
	}
	unlock();
	if (stale)
		hy_close(stale);
	if (swept)
		hy_close(swept);
	if (!box || box->file)
		return box;
	file = hy_adopt(fd, &shim.policy);
	lock();
	box->file = file;
	unlock();
	if (file)
		return box;
	shim_put(box);
	return NULL;
}

void shim_put(struct shim_box *box)
{
	struct hy_file *file = NULL;

	lock();
	box->users--;
	if (!box->users && (box->retired || !box->file))
		file = detach(box);
	unlock();
	if (file)
		hy_close(file);
}

static bool in_use(const struct shim_box *box, int fd)
{
	bool in;

	lock();
	in = box->used && box->retired && box->users && box->fd == fd;
	unlock();
	return in;
}

int shim_forget(int fd)
{
	struct hy_file *file = NULL;
	struct shim_box *box;
	sigset_t before;
	int error = 0, saved = errno;

	if ((unsigned int)fd >= SHIM_DESCRIPTORS)
		return 0;
	__atomic_store_n(&shim_descriptors[fd], 0, __ATOMIC_RELAXED);
	shim_streams[fd] = (struct shim_stream){ { 0, 0 }, 0, 0 };
	if (likely(!shim_has_box(fd)) || shim_thread.inside)
		return 0;
	shim_enter(&before);
	lock();
	box = box_at(fd);
	if (box)
		file = detach(box);
	unlock();
	/* Wait for requests of other threads: during their system calls the number must mean this file. */
	while (box && !file && in_use(box, fd))
		sched_yield();
	if (file && hy_close(file))
		error = errno;
	shim_leave(&before);
	errno = error ? error : saved;
	return error ? -1 : 0;
}

void shim_forget_range(unsigned int first, unsigned int last)
{
	int highest = __atomic_load_n(&shim_highest, __ATOMIC_RELAXED);

	for (unsigned int fd = first; (int)fd <= highest && fd <= last; fd++)
		if (shim_descriptors[fd])
			shim_forget((int)fd);
	for (int i = 0; i < shim_boxes; i++) {
		int direct = direct_of(&boxes[i]);

		if (direct >= 0 && (unsigned int)direct >= first && (unsigned int)direct <= last)
			shim_forget(boxes[i].fd);
	}
}

void shim_copied(int from, int to)
{
	uint8_t value = 0;

	if ((unsigned int)to >= SHIM_DESCRIPTORS)
		return;
	if ((unsigned int)from < SHIM_DESCRIPTORS)
		value = __atomic_load_n(&shim_descriptors[from], __ATOMIC_RELAXED);
	reset(to, value);
}

void shim_share_position(int fd)
{
	if ((unsigned int)fd < SHIM_DESCRIPTORS)
		__atomic_and_fetch(&shim_descriptors[fd], (uint8_t)~SHIM_OWN, __ATOMIC_RELAXED);
}

/* Called before exec, which inherits our descriptors. */
void shim_share_all(bool inheritable_only)
{
	int highest = __atomic_load_n(&shim_highest, __ATOMIC_RELAXED), saved = errno;

	for (int fd = 0; fd <= highest; fd++) {
		if (!(shim_descriptors[fd] & SHIM_OWN))
			continue;
		if (inheritable_only && syscall(SYS_fcntl, fd, F_GETFD, 0) & FD_CLOEXEC)
			continue;	/* also -1: closed */
		shim_share_position(fd);
	}
	errno = saved;
}

bool shim_is_ours(int fd)
{
	if ((unsigned int)fd < SHIM_DESCRIPTORS && shim_descriptors[fd])
		return false;
	for (int i = 0; i < shim_boxes; i++)
		if (direct_of(&boxes[i]) == fd)
			return hy_own_fd_valid(&boxes[i].file->direct);
	return false;
}

static bool retire_some(const struct stat *about)
{
	bool any = false;

	for (int i = 0; i < shim_boxes; i++) {
		struct shim_box *box = &boxes[i];
		struct hy_file *file = NULL;

		lock();
		if (box->used && !box->retired && box->file && (about || !box->users) &&
		    (!about || (box->dev == about->st_dev && box->ino == about->st_ino))) {
			file = detach(box);
			any = true;
		}
		unlock();
		if (file)
			hy_close(file);
	}
	return any;
}

static bool under_way(const struct stat *about)
{
	bool any = false;

	lock();
	for (int i = 0; i < shim_boxes; i++)
		any |= boxes[i].used && boxes[i].dev == about->st_dev && boxes[i].ino == about->st_ino;
	unlock();
	return any;
}

bool shim_make_room(void)
{
	sigset_t before;
	int saved = errno;
	bool any;

	if (shim_thread.inside)
		return false;
	shim_enter(&before);
	any = retire_some(NULL);
	shim_leave(&before);
	errno = saved;
	return any;
}

void shim_stop(void)
{
	shim_make_room();
	shim.large = UINT64_MAX;
	shim.off = true;
}

void shim_leave_alone(const struct stat *about, uint32_t why)
{
	sigset_t before;
	int saved = errno;
	uint32_t at;
	bool fresh;

	if (shim_thread.inside)
		return;
	shim_enter(&before);
	lock();
	at = inode_of(about);
	fresh = !(inodes[at].why & why);
	if (inodes[at].why) {
		inodes[at].why |= why;
	} else if (inodes_used + 1 < INODES) {	/* one stays free, to end searches */
		inodes[at].dev = about->st_dev;
		inodes[at].ino = about->st_ino;
		inodes[at].why = why;
		inodes_used++;
	} else {
		every_inode |= why;
	}
	unlock();
	if (fresh && why & SHIM_LOCKED) {
		retire_some(about);
		/* it is closed when its last request ends, which must precede the program's lock */
		while (under_way(about)) {
			sched_yield();
			retire_some(about);	/* one that another thread was adopting */
		}
	}
	shim_leave(&before);
	errno = saved;
}

/* The child of a fork has no other threads: release what they held. */
void shim_table_forked(void)
{
	lock_word = 0;
	for (int i = 0; i < shim_boxes; i++) {
		if (!boxes[i].used)
			continue;
		boxes[i].users = 0;
		if (boxes[i].retired || !boxes[i].file) {
			if (shim_box_of[boxes[i].fd] == i + 1)
				shim_box_of[boxes[i].fd] = 0;
			boxes[i].used = false;	/* its user was a thread of the parent */
		}
	}
}
