/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The state of single pages: a few bits each, in chunks of 512 pages of a file, in a map of bounded size. */
#ifndef WHYSTALL_PAGE_CHUNKS_H
#define WHYSTALL_PAGE_CHUNKS_H

#include "host.bpf.h"

#define CHUNK_PAGES (1 << CHUNK_SHIFT)
HASH_MAP(page_chunks, struct chunk_key, struct page_chunk, 32768);

enum chunk_work {
	CHUNK_TOUCH,	/* used; returns how many had been used before */
	CHUNK_ADD,	/* added; returns how many had been evicted by reclaim */
	CHUNK_USED,	/* used by the call or fault that added them */
	CHUNK_RECLAIM,	/* evicted; returns how many were added in this window, and << 16 how many of these used at most once */
	CHUNK_DROP,
};

#define CHUNK_RANGE(first, last) ((__u32)(first) | (__u32)(last) << 16)

static __always_inline __u32 ones(__u64 word)
{
	word -= word >> 1 & 0x5555555555555555ULL;
	word = (word & 0x3333333333333333ULL) + (word >> 2 & 0x3333333333333333ULL);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return word * 0x0101010101010101ULL >> 56;
}

static __always_inline __u64 work_on_word(struct page_chunk *chunk, __u32 i, __u64 mask, __u32 work, bool plain)
{
	__u64 before, here;

	switch (work) {
	case CHUNK_TOUCH:
		before = set_bits(&chunk->touched[i], mask, plain) & mask;
		here = chunk->added[i] & mask;
		if (here)
			set_bits(&chunk->more[i], set_bits(&chunk->once[i], here, plain) & here, plain);
		return ones(before);
	case CHUNK_ADD:
		clear_bits(&chunk->once[i], mask, plain);
		clear_bits(&chunk->more[i], mask, plain);
		set_bits(&chunk->added[i], mask, plain);
		return ones(clear_bits(&chunk->evicted[i], mask, plain) & mask);
	case CHUNK_USED:
		set_bits(&chunk->touched[i], mask, plain);
		set_bits(&chunk->once[i], mask, plain);
		return 0;
	case CHUNK_RECLAIM:
		set_bits(&chunk->evicted[i], mask, plain);
		break;
	default:
		clear_bits(&chunk->evicted[i], mask, plain);
	}
	here = clear_bits(&chunk->added[i], mask, plain) & mask;
	return ones(here) | (__u64)ones(here & ~chunk->more[i]) << 16;
}

static __always_inline __u64 work_on_chunk(__u64 ino, __u64 dev, __u64 number, __u32 range, __u32 work, bool plain)
{
	struct chunk_key key = { .file.ino = ino, .file.dev = dev >> 32, .file.gen = dev, .chunk = number };
	struct page_chunk *chunk = bpf_map_lookup_elem(&page_chunks, &key);
	__u32 first = range & 0xffff, last = range >> 16;
	__u64 sum = 0;

	if (!chunk)
		return 0;
	for (__u32 i = 0; i < CHUNK_WORDS; i++) {
		__u32 low = i * 64 > first ? 0 : first - i * 64, high = last - i * 64;

		if (low > 63 || i * 64 > last)
			continue;
		if (high > 63)
			high = 63;
		sum += work_on_word(chunk, i, ~0ULL >> ((63 - (high - low)) & 63) << (low & 63), work, plain);
	}
	return sum;
}

/* Global functions, verified once. `dev`: the file's device << 32 | generation. */
__noinline __u64 chunk_work(__u64 ino, __u64 dev, __u64 number, __u32 range, __u32 work)
{
	return work_on_chunk(ino, dev, number, range, work, false);
}

#ifdef NO_KERNEL_FUNCTIONS
__noinline __u64 chunk_work_plain(__u64 ino, __u64 dev, __u64 number, __u32 range, __u32 work)
{
	return work_on_chunk(ino, dev, number, range, work, true);
}

#define CHUNK_WORK(plain, ...) ((plain) ? chunk_work_plain(__VA_ARGS__) : chunk_work(__VA_ARGS__))
/* A kernel without atomic operations refuses them even in dead code: these programs exist with and without. */
#define PAGE_PROGRAM(name, section, body)			\
	SEC(section) int name(__u64 *ctx)			\
	{							\
		return window_open() ? body(ctx, false) : 0;	\
	}							\
	SEC(section) int name##_plain(__u64 *ctx)		\
	{							\
		return window_open() ? body(ctx, true) : 0;	\
	}
#else
#define CHUNK_WORK(plain, ...) chunk_work(__VA_ARGS__)
#define PAGE_PROGRAM(name, section, body)			\
	SEC(section) int name(__u64 *ctx)			\
	{							\
		return window_open() ? body(ctx, false) : 0;	\
	}
#endif

/* Makes sure that a chunk exists; part of the map is reserved for pages used by targets. */
static __always_inline bool have_chunk(struct file_key *file, __u64 number, bool target)
{
	struct chunk_key key = { .file = *file, .chunk = number };
	long error;

	if (bpf_map_lookup_elem(&page_chunks, &key))
		return true;
	if (!target && live.other_chunks >= config.chunks_of_others)
		return false;
	error = bpf_map_update_elem(&page_chunks, &key, &page_chunks_zeroes, BPF_NOEXIST);
	if ((__s32)error)
		return (__s32)error == -17;	/* EEXIST: another CPU was first */
	if (!target)
		__sync_fetch_and_add(&live.other_chunks, 1);
	return true;
}

/* Whether reclaim has evicted this page and it was not read back. */
static __always_inline bool was_evicted(struct file_key *file, __u64 index)
{
	struct chunk_key key = { .file = *file, .chunk = index >> CHUNK_SHIFT };
	struct page_chunk *chunk = bpf_map_lookup_elem(&page_chunks, &key);

	return chunk && chunk->evicted[index >> 6 & (CHUNK_WORDS - 1)] >> (index & 63) & 1;
}

#endif
