/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The one object of the kernel side. Which programs load, and what they do, is decided at load. */
#include "block.bpf.h"
#include "interrupts.bpf.h"
#include "page_calls.bpf.h"
#include "run_queue.bpf.h"
#include "samples.bpf.h"
#include "tasks.bpf.h"

/* The kernel knows no word for "GPL or Apache"; to it we give the program under the GPL. */
char LICENSE[] SEC("license") = "GPL";
