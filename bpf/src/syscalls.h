/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Shared with bpf/src_bcc. System calls: totals of a target's calls, latencies per file, records of slow ones. */
#ifndef WHYSTALL_SYSCALLS_H
#define WHYSTALL_SYSCALLS_H

#include "histogram.h"

#define VECTOR_PARTS 32

HASH_MAP(call_totals, struct call_key, struct call_total, 16384);
HASH_MAP(file_slots, struct slot_key, struct slot_value, 32768);

struct vector_part { __u64 base, length; };	/* struct iovec */
struct vector_sum { __u64 address, sum; };

static long add_part(__u32 i, struct vector_sum *sum)
{
	struct vector_part part;

	if (bpf_probe_read_user(&part, sizeof(part), (void *)(sum->address + i * sizeof(part))))
		return 1;
	sum->sum += part.length;
	return 0;
}

/* Bytes of the first VECTOR_PARTS parts of a vector call. */
static __always_inline __u64 vector_bytes(__u64 address, __u64 parts)
{
	struct vector_sum sum = { .address = address };

	if (parts > VECTOR_PARTS)
		parts = VECTOR_PARTS;
	REPEAT(parts, VECTOR_PARTS, add_part, &sum);
	return sum.sum;
}

static __always_inline void add_call_total(struct thread_state *state, __u32 tgid, __u32 tid, __u64 duration,
					   __u64 bytes)
{
	struct call_key key = { .tgid = tgid, .tid = tid, .nr = state->call_nr };
	struct call_total *total = call_totals_lookup(&key);

	if (total) {	/* one thread, one call at a time: it has one writer */
		total->count++;
		total->wall_ns += duration;
		total->bytes += bytes;
		total->d_ns += state->call_off[OFF_D];
		total->s_ns += state->call_off[OFF_S];
		total->run_ns += state->call_off[OFF_R];
		total->other_ns += state->call_off[OFF_OTHER];
		if (duration > total->max_ns)
			total->max_ns = duration;
	} else {
		struct call_total first = {
			.count = 1, .wall_ns = duration, .max_ns = duration, .bytes = bytes,
			.d_ns = state->call_off[OFF_D], .s_ns = state->call_off[OFF_S],
			.run_ns = state->call_off[OFF_R], .other_ns = state->call_off[OFF_OTHER],
		};

		if (call_totals_update(&key, &first))
			count(LOST_CALL_TOTALS_FULL);
	}
}

static __always_inline void add_file_slot(struct file_key *file, __u32 tgid, __s32 nr, __u64 duration, __u64 bytes)
{
	struct slot_key key = { .file = *file, .tgid = tgid, .nr = nr, .slot = slot_of(duration) };
	struct slot_value *value = file_slots_make(&key, LOST_FILE_SLOTS_FULL);

	if (!value)
		return;
	__sync_fetch_and_add(&value->count, 1);	/* threads of a process share it */
	__sync_fetch_and_add(&value->sum_ns, duration);
	__sync_fetch_and_add(&value->bytes, bytes);
}

/*
 * Fills a zeroed record with everything but the thread, flags of the call and the paths. `open`: the call still runs;
 * then it has returned nothing, and its memory cannot be read. The call's open file, if it has one, goes to `found`.
 */
static __always_inline void fill_call(struct call_record *record, struct files_struct *files, struct pt_regs *regs,
				      struct thread_state *state, const volatile struct syscall_row *row,
				      __s64 returned, bool open, struct found_file *found)
{
	unsigned int f_flags;
	struct file *file;
	__s32 fd = -1;

	record->type = RECORD_CALL;
	record->nr = state->call_nr;
	record->returned = returned;
	record->offset = -1;
	record->d_ns = state->call_off[OFF_D];
	record->s_ns = state->call_off[OFF_S];
	record->run_ns = state->call_off[OFF_R];
	record->other_ns = state->call_off[OFF_OTHER];
	record->stack = state->longest_stack;
	record->longest_ns = state->longest_ns;
	if (row->size != NO_ARG) {
		record->asked = regs_arg(regs, row->size);
		if (row->flags & ROW_VECTOR && !open)
			record->asked = vector_bytes(regs_arg(regs, row->size - 1), record->asked);
	}
	if (row->offset != NO_ARG)
		record->offset = regs_arg(regs, row->offset);
	if (row->fd != NO_ARG)
		fd = regs_arg(regs, row->fd);
	else if (row->flags & ROW_RETURNS_FD && !open)
		fd = returned;
	record->fd = fd;
	if (row->flags & ROW_CLOSES && state->closing.ino) {
		record->file = state->closing;
	} else if (find_file(files, fd, found)) {
		file = found->file;
		f_flags = READ(file, f_flags);
		record->file = found->key;
		if ((found->mode & S_IFMT) == S_IFREG)
			record->flags |= RECORD_REGULAR;
		if (f_flags & O_DIRECT_BIT)
			record->flags |= RECORD_DIRECT;
		if (f_flags & O_DSYNC_BIT)
			record->flags |= RECORD_SYNC;
		if (row->flags & ROW_POSITION) {
			record->offset = READ(file, f_pos);
			if (returned > 0)
				record->offset -= returned;
		}
	}
}

/* Fills a record with a path in the caller's memory. Returns its length with the NUL; 0: it cannot be read. */
static __always_inline long fill_path(struct path_record *record, __u32 which, __u32 tid, __u64 start, __u64 address)
{
	long n = bpf_probe_read_user_str(record->text, PATH_BYTES, (void *)address);

	if (n <= 0 || n > PATH_BYTES)
		return 0;
	record->type = RECORD_PATH;
	record->which = which;
	record->tid = tid;
	record->start = start;
	record->length = n;
	return n;
}

/* Remembers the file that a call is about to close. */
static __always_inline void note_closing(struct thread_state *state, struct found_file *found)
{
	struct file *file = found->file;

	state->closing = found->key;
	state->closing_dentry = (__u64)READ(file, f_path.dentry);
	state->closing_mnt = (__u64)READ(file, f_path.mnt);
}

#endif
