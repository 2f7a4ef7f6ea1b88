/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Shared with bpf/src_bcc. The slots of latency histograms. */
#ifndef WHYSTALL_HISTOGRAM_H
#define WHYSTALL_HISTOGRAM_H

/* Log-linear: exact below 8, then 8 steps per doubling. User space inverts it (layout.slot_bounds). */
static __always_inline __u32 slot_of(__u64 value)
{
	__u64 rest = value;
	__u32 log = 0;

	if (value < 8)
		return value;
	if (rest >> 32) { rest >>= 32; log += 32; }
	if (rest >> 16) { rest >>= 16; log += 16; }
	if (rest >> 8) { rest >>= 8; log += 8; }
	if (rest >> 4) { rest >>= 4; log += 4; }
	if (rest >> 2) { rest >>= 2; log += 2; }
	if (rest >> 1) { log += 1; }
	return ((log - 3) << 3) + (__u32)(value >> (log - 3));
}

#endif
