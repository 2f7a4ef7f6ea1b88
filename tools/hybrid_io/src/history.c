/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which parts of files this process has read, and which it has put into the page cache. Kept by inode, beyond close and
 * open: each epoch over a data set opens its files again.
 *
 * Bounded: at most INODES files, the least recently opened are removed; each has CHUNKS bits of each kind, for chunks of
 * 2 MiB, or more in files beyond 8 GiB. It is used to choose direct or buffered I/O and to drop pages, so that errors cost
 * time and never data.
 */
#include <string.h>

#include "internal.h"

#define INODES 1024
#define BUCKETS 1024
#define CHUNKS 4096
#define WORDS (CHUNKS / 64)
#define SMALLEST_SHIFT 21
#define EXPIRES_NS (600ull * 1000000000ull)	/* pages unused for so long no longer count as kept */

/*
 * States of a chunk. READ: read to its end. KEPT: in the cache, to stay there; HOT: and read again since, so active
 * for the kernel. ONCE: passed through the cache, may be dropped. KNOWN: tested before a stream reached it; FOREIGN:
 * and cached already at that time, so not dropped.
 */
enum kind { READ, KEPT, HOT, ONCE, KNOWN, FOREIGN, KINDS };

struct hy_inode {
	dev_t dev;
	ino_t ino;
	struct timespec changed;
	uint32_t users, shift;
	uint64_t used_ns;
	uint64_t bits[KINDS][WORDS];
	uint32_t set[KINDS];
	struct hy_inode *next;				/* of the bucket */
	struct hy_inode *newer, *older;
};

static struct {
	pthread_mutex_t lock;
	struct hy_inode *bucket[BUCKETS];
	struct hy_inode *newest, *oldest;
	uint32_t count;
	uint64_t sum[KINDS];		/* bytes, of all */
} all = { .lock = PTHREAD_MUTEX_INITIALIZER };

static struct hy_inode **bucket_of(dev_t dev, ino_t ino)
{
	return &all.bucket[(dev * 31 + ino * 0x9e3779b97f4a7c15ull) >> 54];
}

static uint64_t chunk(const struct hy_inode *inode)
{
	return 1ull << inode->shift;
}

static bool get(const struct hy_inode *inode, enum kind kind, uint64_t at)
{
	return inode->bits[kind][at / 64] >> at % 64 & 1;
}

static void put(struct hy_inode *inode, enum kind kind, uint64_t at, bool value)
{
	if (get(inode, kind, at) == value)
		return;
	inode->bits[kind][at / 64] ^= 1ull << at % 64;
	inode->set[kind] += value ? 1u : -1u;
	all.sum[kind] += value ? chunk(inode) : -chunk(inode);
}

static void clear(struct hy_inode *inode, enum kind kind)
{
	for (uint64_t i = 0; inode->set[kind] && i < CHUNKS; i++)
		put(inode, kind, i, false);
}

/* Doubles the chunks until they cover a file of `bytes`; a bit stays set if both halves had it. */
static void fit(struct hy_inode *inode, uint64_t bytes)
{
	while (bytes > (uint64_t)CHUNKS << inode->shift) {
		uint64_t old[KINDS][WORDS];

		memcpy(old, inode->bits, sizeof(old));
		for (int kind = 0; kind < KINDS; kind++)
			clear(inode, (enum kind)kind);
		inode->shift++;
		for (int kind = 0; kind < KINDS; kind++)
			for (uint64_t i = 0; i < CHUNKS / 2; i++)
				put(inode, (enum kind)kind, i,
				    (old[kind][2 * i / 64] >> 2 * i % 64 & 3) >= (kind == FOREIGN ? 1 : 3));
	}
}

static void unlink_age(struct hy_inode *inode)
{
	*(inode->newer ? &inode->newer->older : &all.newest) = inode->older;
	*(inode->older ? &inode->older->newer : &all.oldest) = inode->newer;
}

static void link_newest(struct hy_inode *inode)
{
	inode->newer = NULL;
	inode->older = all.newest;
	*(all.newest ? &all.newest->newer : &all.oldest) = inode;
	all.newest = inode;
}

static void forget(struct hy_inode *inode)
{
	struct hy_inode **link = bucket_of(inode->dev, inode->ino);

	while (*link != inode)
		link = &(*link)->next;
	*link = inode->next;
	unlink_age(inode);
	for (int kind = 0; kind < KINDS; kind++)
		clear(inode, (enum kind)kind);
	all.count--;
	k_munmap(inode, sizeof(*inode));
}

struct hy_inode *hy_history_attach(const struct stat *about)
{
	struct hy_inode **bucket = bucket_of(about->st_dev, about->st_ino), *inode;

	pthread_mutex_lock(&all.lock);
	for (inode = *bucket; inode; inode = inode->next)
		if (inode->ino == about->st_ino && inode->dev == about->st_dev)
			break;
	if (inode) {
		unlink_age(inode);
		/* The content has changed, or it is another file: a read of it is a first one. */
		if (inode->changed.tv_sec != about->st_mtim.tv_sec || inode->changed.tv_nsec != about->st_mtim.tv_nsec)
			clear(inode, READ);
	} else {
		for (struct hy_inode *old = all.oldest; old && all.count >= INODES;) {
			struct hy_inode *newer = old->newer;

			if (!old->users)
				forget(old);
			old = newer;
		}
		inode = all.count < INODES ? hy_memory(sizeof(*inode)) : NULL;
		if (!inode) {
			pthread_mutex_unlock(&all.lock);
			return NULL;
		}
		inode->dev = about->st_dev;
		inode->ino = about->st_ino;
		inode->shift = SMALLEST_SHIFT;
		inode->next = *bucket;
		*bucket = inode;
		all.count++;
	}
	if (!inode->users) {	/* a while ago */
		clear(inode, KNOWN);
		clear(inode, FOREIGN);
	}
	link_newest(inode);
	inode->changed = about->st_mtim;
	inode->users++;
	inode->used_ns = hy_now_ns();
	pthread_mutex_unlock(&all.lock);
	return inode;
}

void hy_history_detach(struct hy_inode *inode)
{
	if (!inode)
		return;
	pthread_mutex_lock(&all.lock);
	inode->users--;
	pthread_mutex_unlock(&all.lock);
}

/* Returns how many bytes of a range were read before. */
uint64_t hy_history_reread(struct hy_inode *inode, uint64_t offset, uint64_t bytes)
{
	uint64_t end = offset + bytes, total = 0;

	if (!inode || !bytes)
		return 0;
	pthread_mutex_lock(&all.lock);
	for (uint64_t at = offset; at < end;) {
		uint64_t next = hy_down(at, chunk(inode)) + chunk(inode);

		if (next > end)
			next = end;
		if (at >> inode->shift < CHUNKS && get(inode, READ, at >> inode->shift))
			total += next - at;
		at = next;
	}
	pthread_mutex_unlock(&all.lock);
	return total;
}

/*
 * Records that a range was transferred. A chunk counts as read when its last byte was, so that further requests within it
 * do not count as a second read. `ours`: whether chunks that are not KNOWN were read from the device by this process.
 */
void hy_history_note(struct hy_inode *inode, enum hy_note note, uint64_t offset, uint64_t bytes, uint64_t file_bytes,
		     bool ours)
{
	uint64_t end = offset + bytes, first, last;

	if (!inode || !bytes)
		return;
	pthread_mutex_lock(&all.lock);
	fit(inode, end > file_bytes ? end : file_bytes);
	first = offset >> inode->shift;
	last = end >> inode->shift;
	if (end == file_bytes && end & (chunk(inode) - 1))
		last++;
	for (uint64_t i = first; i < last && i < CHUNKS; i++) {
		bool before = get(inode, READ, i), foreign = get(inode, KNOWN, i) ? get(inode, FOREIGN, i) : !ours;

		/* the next stream must test it again */
		put(inode, KNOWN, i, false);
		put(inode, FOREIGN, i, false);
		if (note != HY_NOTE_WRITTEN)
			put(inode, READ, i, true);
		switch (note) {
		case HY_NOTE_KEPT:
			put(inode, KEPT, i, true);
			put(inode, ONCE, i, false);
			break;
		case HY_NOTE_ONCE:
			/* chunks read again are not dropped */
			put(inode, ONCE, i, !foreign && !before && !get(inode, KEPT, i));
			break;
		case HY_NOTE_STREAM:
			if (foreign)
				break;
			put(inode, KEPT, i, false);
			put(inode, HOT, i, false);
			/* fall through */
		case HY_NOTE_WRITTEN:
			put(inode, ONCE, i, true);
			break;
		case HY_NOTE_READ:
			if (before)
				put(inode, ONCE, i, false);
			if (get(inode, KEPT, i))
				put(inode, HOT, i, true);
			break;
		}
	}
	inode->used_ns = hy_now_ns();
	pthread_mutex_unlock(&all.lock);
}

/* Tests, before a stream reaches a range, which of its chunks that are not KNOWN are in the cache. */
void hy_history_survey(struct hy_inode *inode, int fd, uint64_t from, uint64_t to)
{
	uint64_t at = from, size, start;
	bool known;

	while (inode && at < to) {
		pthread_mutex_lock(&all.lock);
		size = chunk(inode);
		known = at >> inode->shift >= CHUNKS || get(inode, KNOWN, at >> inode->shift);
		pthread_mutex_unlock(&all.lock);
		start = hy_down(at, size);
		at = start + size;
		if (known)
			continue;
		int64_t resident = hy_resident(fd, start, size, NULL);

		pthread_mutex_lock(&all.lock);
		if (size == chunk(inode)) {
			put(inode, KNOWN, start >> inode->shift, true);
			/* up to a quarter may belong to a neighbouring request */
			put(inode, FOREIGN, start >> inode->shift, resident < 0 || (uint64_t)resident * 4 > size);
		}
		pthread_mutex_unlock(&all.lock);
	}
}

/* At the end of a stream: marks the range that was read ahead of it as droppable. */
void hy_history_ahead(struct hy_inode *inode, uint64_t from, uint64_t to)
{
	if (!inode)
		return;
	pthread_mutex_lock(&all.lock);
	for (uint64_t i = from >> inode->shift; i < to >> inode->shift && i < CHUNKS; i++)
		if (get(inode, KNOWN, i) && !get(inode, FOREIGN, i))
			put(inode, ONCE, i, true);
	pthread_mutex_unlock(&all.lock);
}

/* Whether all of a range was in the cache before the stream came. */
bool hy_history_foreign(struct hy_inode *inode, uint64_t offset, uint64_t bytes)
{
	bool foreign = inode && bytes;

	if (!foreign)
		return false;
	pthread_mutex_lock(&all.lock);
	for (uint64_t i = offset >> inode->shift; foreign && i <= (offset + bytes - 1) >> inode->shift; i++)
		foreign = i < CHUNKS && get(inode, FOREIGN, i);
	pthread_mutex_unlock(&all.lock);
	return foreign;
}

/*
 * Finds and unmarks the next run of ONCE chunks, of at most `most` bytes but at least one chunk; false: there is none.
 */
bool hy_history_droppable(struct hy_inode *inode, uint64_t most, uint64_t *offset, uint64_t *bytes)
{
	uint64_t from = 0, to;

	if (!inode)
		return false;
	pthread_mutex_lock(&all.lock);
	if (!inode->set[ONCE]) {
		pthread_mutex_unlock(&all.lock);
		return false;
	}
	while (!get(inode, ONCE, from))
		from = inode->bits[ONCE][from / 64] ? from + 1 : hy_up(from + 1, 64);
	for (to = from; to < CHUNKS && get(inode, ONCE, to) &&
			(to == from || (to + 1 - from) << inode->shift <= most); to++)
		put(inode, ONCE, to, false);
	*offset = from << inode->shift;
	*bytes = (to - from) << inode->shift;
	pthread_mutex_unlock(&all.lock);
	return true;
}

/* Marks chunks again that could not be dropped yet. */
void hy_history_again(struct hy_inode *inode, uint64_t offset, uint64_t bytes)
{
	if (!inode)
		return;
	pthread_mutex_lock(&all.lock);
	for (uint64_t i = offset >> inode->shift; i < (offset + bytes) >> inode->shift && i < CHUNKS; i++)
		put(inode, ONCE, i, true);
	pthread_mutex_unlock(&all.lock);
}

uint64_t hy_history_own(struct hy_inode *inode)
{
	uint64_t own;

	if (!inode)
		return 0;
	pthread_mutex_lock(&all.lock);
	own = (uint64_t)(inode->set[KEPT] + inode->set[ONCE]) << inode->shift;
	pthread_mutex_unlock(&all.lock);
	return own;
}

/* Returns the bytes of this file that may be dropped. */
uint64_t hy_history_once(struct hy_inode *inode)
{
	uint64_t once;

	if (!inode)
		return 0;
	pthread_mutex_lock(&all.lock);
	once = (uint64_t)inode->set[ONCE] << inode->shift;
	pthread_mutex_unlock(&all.lock);
	return once;
}

/* Returns the bytes that this process has put into the cache to stay and not used since. */
uint64_t hy_history_kept(void)
{
	uint64_t cold;

	pthread_mutex_lock(&all.lock);
	cold = all.sum[KEPT] > all.sum[HOT] ? all.sum[KEPT] - all.sum[HOT] : 0;
	pthread_mutex_unlock(&all.lock);
	return cold;
}

/* Forgets KEPT chunks of files unused for long: the kernel may have evicted them. Called from time to time. */
void hy_history_expire(void)
{
	uint64_t now = hy_now_ns();

	pthread_mutex_lock(&all.lock);
	for (struct hy_inode *inode = all.oldest; inode; inode = inode->newer) {
		if (inode->users || !inode->set[KEPT] || now - inode->used_ns < EXPIRES_NS)
			continue;
		clear(inode, KEPT);
		clear(inode, HOT);
	}
	pthread_mutex_unlock(&all.lock);
}

void hy_history_lock(void)
{
	pthread_mutex_lock(&all.lock);
}

void hy_history_unlock(void)
{
	pthread_mutex_unlock(&all.lock);
}
