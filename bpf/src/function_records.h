/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Layouts that the object of user functions shares with user space, see records.h. */
#ifndef WHYSTALL_FUNCTION_RECORDS_H
#define WHYSTALL_FUNCTION_RECORDS_H

/*
 * The cookie of a probe: the function's number, and what is recorded of its arguments. Of each value: the argument's
 * number (ARGUMENT_NONE: nothing), whether a word is loaded from it at an offset, and whether another is loaded from
 * that; offsets count words of 8 bytes.
 */
enum cookie_layout {
	FUNCTION_BITS = 12,
	VALUE_BITS = 13,
	VALUE_COUNT = 4,
	ARGUMENT_BITS = 3,
	ARGUMENT_NONE = 7,
	LOAD_BITS = 5,
	NEXT_BITS = 3,
};

enum function_event { FUNCTION_ENTERED, FUNCTION_RETURNED };

/* values: 0 where memory could not be read; after a return the first is what the function returned. */
struct function_record {
	__u64 at;
	__u64 values[VALUE_COUNT];
	__s32 tgid, tid;
	__u16 function;
	__u16 event;		/* enum function_event */
	__u32 unread;		/* bit n: value n could not be read */
};

#endif
