/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Block I/O, keyed by the request: flushes and splits share sectors, never requests.
 * Queue time: insert to issue (0 when issued directly). Device time: issue to complete.
 */
#ifndef WHYSTALL_BLOCK_H
#define WHYSTALL_BLOCK_H

#include "host.bpf.h"
#include "request.bpf.h"

HASH_MAP(requests, __u64, struct request_state, 8192);
HASH_MAP(block_slots, struct block_key, struct block_slot, 8192);
HASH_MAP(block_totals, struct block_key, struct block_total, 512);

static __always_inline void remember_request(struct request *rq, __u64 insert, __u64 issue)
{
	struct request_state state = { .insert = insert, .issue = issue };
	__u64 address = (__u64)rq, id = bpf_get_current_pid_tgid();
	struct gendisk *disk = request_disk(rq);

	state.allocated = BPF_CORE_READ(rq, start_time_ns);
	state.sector = BPF_CORE_READ(rq, __sector);
	state.bytes = BPF_CORE_READ(rq, __data_len);
	state.op = block_op(BPF_CORE_READ(rq, cmd_flags));
	if (disk)
		state.dev = BPF_CORE_READ(disk, major) << 20 | BPF_CORE_READ(disk, first_minor);
	state.tgid = id >> 32;
	state.tid = id;
	bpf_get_current_comm(state.comm, sizeof(state.comm));
	if (bpf_map_update_elem(&requests, &address, &state, BPF_ANY))
		count(LOST_REQUESTS);
}

SEC("tp_btf/block_rq_insert")
int on_insert(__u64 *ctx)
{
	struct request *rq = block_argument(ctx);

	if (!looking())
		return 0;
	remember_request(rq, bpf_ktime_get_ns(), 0);
	return 0;
}

SEC("tp_btf/block_rq_issue")
int on_issue(__u64 *ctx)
{
	struct request *rq = block_argument(ctx);
	__u64 address = (__u64)rq, now = bpf_ktime_get_ns(), allocated = BPF_CORE_READ(rq, start_time_ns);
	struct request_state *state = bpf_map_lookup_elem(&requests, &address);

	if (!looking())
		return 0;
	if (state && state->allocated == allocated && state->insert) {
		state->issue = now;
		state->bytes = BPF_CORE_READ(rq, __data_len);	/* others may have been merged into it */
		state->sector = BPF_CORE_READ(rq, __sector);
	} else {
		remember_request(rq, 0, now);
	}
	return 0;
}

/* A merged request never completes; forgetting it keeps the map small. Not on every kernel. */
SEC("tp_btf/block_rq_merge")
int on_merge(__u64 *ctx)
{
	__u64 address = (__u64)block_argument(ctx);

	bpf_map_delete_elem(&requests, &address);
	return 0;
}

static __always_inline void add_block_slot(struct block_key *key, __u32 phase, __u64 ns)
{
	struct block_slot *value;

	key->phase = phase;
	key->slot = slot_of(ns);
	value = bpf_map_lookup_elem(&block_slots, key);
	if (!value) {
		struct block_slot none = {};

		bpf_map_update_elem(&block_slots, key, &none, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&block_slots, key);
		if (!value) {
			count(LOST_BLOCK_MAPS);
			return;
		}
	}
	__sync_fetch_and_add(&value->count, 1);
	__sync_fetch_and_add(&value->sum_ns, ns);
}

static __always_inline void add_block_total(struct block_key *key, __u32 bytes, __u64 queue, __u64 device)
{
	struct block_total *value;

	key->phase = 0;
	key->slot = 0;
	value = bpf_map_lookup_elem(&block_totals, key);
	if (!value) {
		struct block_total none = {};

		bpf_map_update_elem(&block_totals, key, &none, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&block_totals, key);
		if (!value) {
			count(LOST_BLOCK_MAPS);
			return;
		}
	}
	__sync_fetch_and_add(&value->count, 1);
	__sync_fetch_and_add(&value->bytes, bytes);
	__sync_fetch_and_add(&value->queue_ns, queue);
	__sync_fetch_and_add(&value->device_ns, device);
	if (queue > value->queue_max_ns)	/* two CPUs at once may lose the smaller of two maxima's race */
		value->queue_max_ns = queue;
	if (device > value->device_max_ns)
		value->device_max_ns = device;
}

/* (request, error, bytes), before the request is advanced by `bytes`. */
SEC("tp_btf/block_rq_complete")
int on_complete(__u64 *ctx)
{
	struct request *rq = (struct request *)ctx[0];
	__u64 address = (__u64)rq, now, queue, device;
	__u32 done = ctx[2], left = BPF_CORE_READ(rq, __data_len);
	struct request_state *state = bpf_map_lookup_elem(&requests, &address);
	struct block_record *record;
	struct block_key key = {};
	__u32 bytes;

	if (!looking())
		return 0;
	if (!state || !state->issue)	/* issued before the window */
		return 0;
	if (done < left)	/* a part; the last one counts */
		return 0;
	now = bpf_ktime_get_ns();
	queue = state->insert && state->issue > state->insert ? state->issue - state->insert : 0;
	device = now > state->issue ? now - state->issue : 0;
	key.dev = state->dev;
	key.op = state->op;
	bytes = state->bytes;	/* of a request completed in parts: all of them */
	count(SEEN_BLOCK);
	add_block_slot(&key, PHASE_QUEUE, queue);
	add_block_slot(&key, PHASE_DEVICE, device);
	add_block_total(&key, bytes, queue, device);
	if (queue + device >= config.block_min_ns) {
		record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
		if (record) {
			record->type = RECORD_BLOCK;
			record->dev = key.dev;
			record->insert = state->insert;
			record->issue = state->issue;
			record->complete = now;
			record->sector = state->sector;
			record->bytes = bytes;
			record->op = key.op;
			record->tgid = state->tgid;
			record->tid = state->tid;
			__builtin_memcpy(record->comm, state->comm, COMM_BYTES);
			bpf_ringbuf_submit(record, ring_flags());
			count(KEPT_RECORDS);
		} else {
			count(LOST_RING);
		}
	}
	bpf_map_delete_elem(&requests, &address);
	return 0;
}

#endif
