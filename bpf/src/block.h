/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Shared with bpf/src_bcc. Block I/O, keyed by the request: flushes and splits share sectors, never requests.
 * Queue time: insert to issue (0 when issued directly). Device time: issue to complete.
 */
#ifndef WHYSTALL_BLOCK_H
#define WHYSTALL_BLOCK_H

#include "histogram.h"
#include "request.h"

HASH_MAP(requests, __u64, struct request_state, 8192);
HASH_MAP(block_slots, struct block_key, struct block_slot, 8192);
HASH_MAP(block_totals, struct block_key, struct block_total, 512);

static __always_inline void remember_request(struct request *rq, __u64 insert, __u64 issue)
{
	struct request_state state = { .insert = insert, .issue = issue };
	__u64 address = (__u64)rq, id = bpf_get_current_pid_tgid();
	struct gendisk *disk = request_disk(rq);

	state.allocated = READ(rq, start_time_ns);
	state.sector = READ(rq, __sector);
	state.bytes = READ(rq, __data_len);
	state.op = block_op(READ(rq, cmd_flags));
	if (disk)
		state.dev = READ(disk, major) << 20 | READ(disk, first_minor);
	state.tgid = id >> 32;
	state.tid = id;
	bpf_get_current_comm(state.comm, sizeof(state.comm));
	if (requests_update(&address, &state))
		count(LOST_REQUESTS_FULL);
}

static __always_inline void request_issued(struct request *rq)
{
	__u64 address = (__u64)rq, now = bpf_ktime_get_ns();
	struct request_state *state = requests_lookup(&address);

	if (state && state->allocated == READ(rq, start_time_ns) && state->insert) {
		state->issue = now;
		state->bytes = READ(rq, __data_len);	/* others may have been merged into it */
		state->sector = READ(rq, __sector);
	} else {
		remember_request(rq, 0, now);
	}
}

static __always_inline void add_block_slot(struct block_key *key, __u32 phase, __u64 ns)
{
	struct block_slot *value;

	key->phase = phase;
	key->slot = slot_of(ns);
	value = block_slots_make(key, LOST_BLOCK_MAPS_FULL);
	if (!value)
		return;
	__sync_fetch_and_add(&value->count, 1);
	__sync_fetch_and_add(&value->sum_ns, ns);
}

static __always_inline void add_block_total(struct block_key *key, __u32 bytes, __u64 queue, __u64 device)
{
	struct block_total *value;

	key->phase = 0;
	key->slot = 0;
	value = block_totals_make(key, LOST_BLOCK_MAPS_FULL);
	if (!value)
		return;
	__sync_fetch_and_add(&value->count, 1);
	__sync_fetch_and_add(&value->bytes, bytes);
	__sync_fetch_and_add(&value->queue_ns, queue);
	__sync_fetch_and_add(&value->device_ns, device);
	if (queue > value->queue_max_ns)	/* racy: of two CPUs at once the smaller maximum may win */
		value->queue_max_ns = queue;
	if (device > value->device_max_ns)
		value->device_max_ns = device;
}

/* Adds a completed request to the totals. Returns its latency: queue and device time, ns. */
static __always_inline __u64 add_request(struct request_state *state, __u64 complete)
{
	__u64 queue = state->insert && state->issue > state->insert ? state->issue - state->insert : 0;
	__u64 device = complete > state->issue ? complete - state->issue : 0;
	struct block_key key = { .dev = state->dev, .op = state->op };

	count(SEEN_BLOCK);
	add_block_slot(&key, PHASE_QUEUE, queue);
	add_block_slot(&key, PHASE_DEVICE, device);
	add_block_total(&key, state->bytes, queue, device);
	return queue + device;
}

static __always_inline void fill_block(struct block_record *record, struct request_state *state, __u64 complete)
{
	record->type = RECORD_BLOCK;
	record->dev = state->dev;
	record->insert = state->insert;
	record->issue = state->issue;
	record->complete = complete;
	record->sector = state->sector;
	record->bytes = state->bytes;	/* all of them, even if the request was completed in parts */
	record->op = state->op;
	record->tgid = state->tgid;
	record->tid = state->tid;
	__builtin_memcpy(record->comm, state->comm, COMM_BYTES);
}

#endif
