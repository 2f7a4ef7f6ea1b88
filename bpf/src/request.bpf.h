/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a block request says of itself. */
#ifndef WHYSTALL_REQUEST_H
#define WHYSTALL_REQUEST_H

#include "common.bpf.h"

#define REQ_OP_MASK 0xff

static __always_inline __u32 block_op(unsigned int flags)
{
	switch (flags & REQ_OP_MASK) {	/* enum req_op, unchanged since 4.10 */
	case 0:
		return BLOCK_READ;
	case 1:
		return flags & (1U << bpf_core_enum_value(enum req_flag_bits, __REQ_SYNC)) ? BLOCK_SYNC_WRITE
											    : BLOCK_WRITE;
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
