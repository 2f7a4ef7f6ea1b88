/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* All programs of bpf/collectors. Which of them are loaded, and their configuration, is chosen before the load. */
#include "accelerator.bpf.h"
#include "block.bpf.h"
#include "interrupts.bpf.h"
#include "page_calls.bpf.h"
#include "run_queue.bpf.h"
#include "samples.bpf.h"
#include "tasks.bpf.h"
#include "wakers.bpf.h"

/* The kernel accepts no license string for "GPL or Apache"; towards it the GPL applies. */
char LICENSE[] SEC("license") = "GPL";
