/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Hooks of block I/O. */
#if BLOCK

#include "block.h"

int on_insert(struct bpf_raw_tracepoint_args *ctx)
{
	struct request *rq = REQUEST_OF(ctx);

	remember_request(rq, bpf_ktime_get_ns(), 0);
	return 0;
}

int on_issue(struct bpf_raw_tracepoint_args *ctx)
{
	request_issued(REQUEST_OF(ctx));
	return 0;
}

/* A merged request never completes; deleting it keeps the map small. The tracepoint exists since 5.11. */
int on_merge(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 address = (__u64)REQUEST_OF(ctx);

	requests.delete(&address);
	return 0;
}

/* (request, error, bytes), before the request is advanced by `bytes` */
int on_complete(struct bpf_raw_tracepoint_args *ctx)
{
	struct request *rq = (struct request *)ctx->args[0];
	__u64 address = (__u64)rq, now, begin = window_start();
	struct request_state *state = requests_lookup(&address);
	struct block_record record = {};
	__u32 done = ctx->args[2];

	if (!state)
		return 0;
	if (done < READ(rq, __data_len))	/* a part; the last one counts */
		return 0;
	if (!state->issue || !begin || (state->insert ? state->insert : state->issue) < begin) {
		requests.delete(&address);	/* it began before the window */
		return 0;
	}
	now = bpf_ktime_get_ns();
	if (add_request(state, now) >= BLOCK_MIN_NS) {
		fill_block(&record, state, now);
		if (events.perf_submit(ctx, &record, sizeof(record)))
			count(LOST_RING_BLOCK);
		else
			count(SEEN_RECORDS);
	}
	requests.delete(&address);
	return 0;
}
#endif
