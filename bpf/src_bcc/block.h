/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Block I/O, keyed by the request: flushes and splits share sectors, never requests.
 * Queue time: insert to issue (0 when issued directly). Device time: issue to complete.
 */
#if BLOCK

BPF_HASH(requests, __u64, struct request_state, 8192);
BPF_HASH(block_slots, struct block_key, struct block_slot, 8192);
BPF_HASH(block_totals, struct block_key, struct block_total, 512);

HERE __u32 block_op(unsigned int flags)
{
	switch (flags & 0xff) {	/* enum req_op, unchanged since 4.10 */
	case 0:
		return BLOCK_READ;
	case 1:
		return flags & REQ_SYNC ? BLOCK_SYNC_WRITE : BLOCK_WRITE;
	case 2:
		return BLOCK_FLUSH;
	case 3:		/* discard */
	case 5:		/* secure erase */
	case 9:		/* write zeroes */
		return BLOCK_DISCARD;
	}
	return BLOCK_OTHER;
}

HERE void remember_request(struct request *rq, __u64 insert, __u64 issue)
{
	struct request_state state = { .insert = insert, .issue = issue };
	__u64 address = (__u64)rq, id = bpf_get_current_pid_tgid();
	struct gendisk *disk = disk_of(rq);

	state.allocated = READ(rq, start_time_ns);
	state.sector = READ(rq, __sector);
	state.bytes = READ(rq, __data_len);
	state.op = block_op(READ(rq, cmd_flags));
	if (disk)
		state.dev = READ(disk, major) << 20 | READ(disk, first_minor);
	state.tgid = id >> 32;
	state.tid = id;
	bpf_get_current_comm(state.comm, sizeof(state.comm));
	if (requests.update(&address, &state))
		count(LOST_REQUESTS);
}

int on_insert(struct bpf_raw_tracepoint_args *ctx)
{
	struct request *rq = REQUEST_OF(ctx);

	remember_request(rq, bpf_ktime_get_ns(), 0);
	return 0;
}

int on_issue(struct bpf_raw_tracepoint_args *ctx)
{
	struct request *rq = REQUEST_OF(ctx);
	__u64 address = (__u64)rq, now = bpf_ktime_get_ns(), allocated = READ(rq, start_time_ns);
	struct request_state *state = requests.lookup(&address);

	if (state && state->allocated == allocated && state->insert) {
		state->issue = now;
		state->bytes = READ(rq, __data_len);	/* others may have been merged into it */
		state->sector = READ(rq, __sector);
	} else {
		remember_request(rq, 0, now);
	}
	return 0;
}

/* A merged request never completes; forgetting it keeps the map small. The tracepoint is there since 5.11. */
int on_merge(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 address = (__u64)REQUEST_OF(ctx);

	requests.delete(&address);
	return 0;
}

HERE void add_block_slot(struct block_key *key, __u32 phase, __u64 ns)
{
	struct block_slot none = {}, *value;

	key->phase = phase;
	key->slot = slot_of(ns);
	value = block_slots.lookup(key);
	if (!value) {
		block_slots.insert(key, &none);
		value = block_slots.lookup(key);
		if (!value) {
			count(LOST_BLOCK_MAPS);
			return;
		}
	}
	__sync_fetch_and_add(&value->count, 1);
	__sync_fetch_and_add(&value->sum_ns, ns);
}

HERE void add_block_total(struct block_key *key, __u32 bytes, __u64 queue, __u64 device)
{
	struct block_total none = {}, *value;

	key->phase = 0;
	key->slot = 0;
	value = block_totals.lookup(key);
	if (!value) {
		block_totals.insert(key, &none);
		value = block_totals.lookup(key);
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

/* (request, error, bytes), before the request is advanced by `bytes` */
int on_complete(struct bpf_raw_tracepoint_args *ctx)
{
	struct request *rq = (struct request *)ctx->args[0];
	__u64 address = (__u64)rq, now, queue, device, begin = window_start();
	__u32 done = ctx->args[2], left = READ(rq, __data_len);
	struct request_state *state = requests.lookup(&address);
	struct block_record record = {};
	struct block_key key = {};

	if (!state)
		return 0;
	if (done < left)	/* a part; the last one counts */
		return 0;
	if (!state->issue || !begin || (state->insert ? state->insert : state->issue) < begin) {
		requests.delete(&address);	/* it began before the window */
		return 0;
	}
	now = bpf_ktime_get_ns();
	queue = state->insert && state->issue > state->insert ? state->issue - state->insert : 0;
	device = now > state->issue ? now - state->issue : 0;
	key.dev = state->dev;
	key.op = state->op;
	count(SEEN_BLOCK);
	add_block_slot(&key, PHASE_QUEUE, queue);
	add_block_slot(&key, PHASE_DEVICE, device);
	add_block_total(&key, state->bytes, queue, device);
	if (queue + device >= BLOCK_MIN_NS) {
		record.type = RECORD_BLOCK;
		record.dev = key.dev;
		record.insert = state->insert;
		record.issue = state->issue;
		record.complete = now;
		record.sector = state->sector;
		record.bytes = state->bytes;	/* of a request completed in parts: all of them */
		record.op = key.op;
		record.tgid = state->tgid;
		record.tid = state->tid;
		__builtin_memcpy(record.comm, state->comm, COMM_BYTES);
		if (events.perf_submit(ctx, &record, sizeof(record)))
			count(LOST_RING);
		else
			count(KEPT_RECORDS);
	}
	requests.delete(&address);
	return 0;
}
#endif
