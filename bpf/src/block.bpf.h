/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Hooks of block I/O. */
#ifndef WHYSTALL_BLOCK_BPF_H
#define WHYSTALL_BLOCK_BPF_H

#include "host.bpf.h"
#include "block.h"

SEC("tp_btf/block_rq_insert")
int on_insert(__u64 *ctx)
{
	if (!window_open())
		return 0;
	remember_request(block_argument(ctx), bpf_ktime_get_ns(), 0);
	return 0;
}

SEC("tp_btf/block_rq_issue")
int on_issue(__u64 *ctx)
{
	if (!window_open())
		return 0;
	request_issued(block_argument(ctx));
	return 0;
}

/* A merged request never completes; deleting it keeps the map small. Not every kernel has the tracepoint. */
SEC("tp_btf/block_rq_merge")
int on_merge(__u64 *ctx)
{
	__u64 address = (__u64)block_argument(ctx);

	bpf_map_delete_elem(&requests, &address);
	return 0;
}

/* (request, error, bytes), before the request is advanced by `bytes`. */
SEC("tp_btf/block_rq_complete")
int on_complete(__u64 *ctx)
{
	struct request *rq = (struct request *)ctx[0];
	__u64 address = (__u64)rq, now;
	__u32 done = ctx[2];
	struct request_state *state;
	struct block_record *record;

	if (!window_open())
		return 0;
	state = requests_lookup(&address);
	if (!state || !state->issue)	/* issued before the window */
		return 0;
	if (done < READ(rq, __data_len))	/* a part; the last one counts */
		return 0;
	now = bpf_ktime_get_ns();
	if (add_request(state, now) >= config.block_min_ns) {
		record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
		if (record) {
			fill_block(record, state, now);
			bpf_ringbuf_submit(record, ring_flags());
			count(SEEN_RECORDS);
		} else {
			count(LOST_RING_BLOCK);
		}
	}
	bpf_map_delete_elem(&requests, &address);
	return 0;
}

#endif
