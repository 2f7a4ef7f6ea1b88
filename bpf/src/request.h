/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Shared with bpf/src_bcc. The kind of a block request. */
#ifndef WHYSTALL_REQUEST_H
#define WHYSTALL_REQUEST_H

static __always_inline __u32 block_op(unsigned int flags)
{
	switch (flags & 0xff) {	/* enum req_op, unchanged since 4.10 */
	case 0:
		return BLOCK_READ;
	case 1:
		return flags & SYNC_REQUEST ? BLOCK_SYNC_WRITE : BLOCK_WRITE;
	case 2:
		return BLOCK_FLUSH;
	case 3:		/* discard */
	case 5:		/* secure erase */
	case 9:		/* write zeroes */
		return BLOCK_DISCARD;
	}
	return BLOCK_OTHER;
}

#endif
