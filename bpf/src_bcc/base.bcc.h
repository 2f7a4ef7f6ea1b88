/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Shared by all programs for BCC. tools/collect/bcc/own_source.py joins the files of this directory with
 * bpf/src/records.h and the settings of a window (CALL_MIN_NS ...) into one text, which BCC compiles against the headers
 * of the running kernel: no BTF, no kprobe, raw tracepoints only (4.17, c4f6699dfcb8).
 *
 * BCC requires that map functions are not called within macros, and that a program's helpers are inlined.
 */
#define HERE static __always_inline
#define PATH_NAMES 48
#define PATH_SLACK (PATH_BYTES + 512)

BPF_ARRAY(live, struct live, 1);
BPF_PERF_OUTPUT(events);

CPU_VALUE(counters, struct counters);

HERE void count(enum counter which)
{
	struct counters *here = counters_here();

	if (here)
		__sync_fetch_and_add(&here->count[which], 1);	/* interrupts may count too */
}

/* Returns the start of the window; 0: not yet, and then only the state of threads is tracked. */
HERE __u64 window_start(void)
{
	int zero = 0;
	struct live *now = live.lookup(&zero);

	return now ? now->window_start : 0;
}

HERE bool is_self(__u32 tgid)
{
	return tgid == PARENT_TGID || tgid == CHILD_TGID;
}

#if EVERYBODY
HERE bool is_traced(__u32 tgid)
{
	return tgid && !is_self(tgid);
}
#else
BPF_HASH(targets, __u32, __u8, 1024);

HERE bool is_traced(__u32 tgid)
{
	return targets.lookup(&tgid) != 0;
}

#if FOLLOW
/* (parent, child): a new process of a target becomes a target */
int on_fork(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *parent = (struct task_struct *)ctx->args[0], *child = (struct task_struct *)ctx->args[1];
	__u32 from = READ(parent, tgid), tgid = READ(child, tgid);
	__u8 one = 1;

	if (from != tgid && is_traced(from) && targets.update(&tgid, &one))
		count(LOST_TARGETS_FULL);
	return 0;
}
#endif
#endif

