/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Layouts that the walk of CPython's frames shares with user space, see records.h. */
#ifndef WHYSTALL_PYTHON_RECORDS_H
#define WHYSTALL_PYTHON_RECORDS_H

enum python_size {
	PYTHON_BYTES = 256,	/* most bytes read of a frame or a code object; a power of two */
	CODE_NAME_BYTES = 256,
	CODE_FILE_BYTES = 512,
	CODE_LINES_BYTES = 4096,
	CODE_IDENTITY_BYTES = 64,	/* of both ends of a line table */
};

enum python_flag {
	PYTHON_THREAD_BY_POINTER = 1 << 0,	/* 3.10: a thread is identified by pthread_self, not by its number */
	PYTHON_FRAME_OBJECTS = 1 << 1,		/* 3.10: frame_instruction is an index, every frame has its own C call */
	PYTHON_CFRAME = 1 << 2,			/* 3.11, 3.12: thread_frame points to a struct that points to the frame */
	PYTHON_IS_ENTRY = 1 << 3,		/* 3.11: frame_owner is 1 if a C call begins with the frame */
};

/* A Python process: addresses, and offsets of members in bytes. */
struct python_process {
	__u64 interpreters;	/* address of the pointer to the first */
	__u64 code_type;	/* address of the type of code objects; 0: not known */
	__u64 collecting;	/* address of an int that is 1 while the collector runs; 0: not known */
	__u64 lock_holder;	/* address of the thread state that holds the interpreter lock, or held it last */
	__u32 flags;
	__u32 pthread_bytes;	/* the thread pointer less pthread_self */
	__u16 interpreter_next, interpreter_threads;
	__u16 thread_next, thread_id, thread_frame, cframe_frame;
	__u16 frame_bytes, frame_previous, frame_code, frame_instruction, frame_owner;
	__u16 code_file, code_name, code_line, code_lines, code_first;
	__u16 code_version;	/* a unique number; 0: none, the line table distinguishes code objects */
	__u16 text_length, text_state, text_ascii, text_compact;
	__u16 bytes_length, bytes_data;
	__u16 pad;
};

/*
 * One word of a Python stack, from the highest bit: 40 bits that name the code object (CODE_RECORD's id), one for
 * whether a C call of the evaluator begins with this frame, 23 bits of instruction: its number in the code object plus
 * one; 0: it has not begun. All ones: no frame, but the function of an accelerator's library that the innermost frame
 * calls, whose number is in place of the code object's; it is the last word.
 */
enum frame_word {
	FRAME_CODE_SHIFT = 24,
	FRAME_ENTRY = 1 << 23,
	FRAME_INSTRUCTION = FRAME_ENTRY - 1,
};

/* A code object, emitted at its first use: its memory may be freed later. */
struct code_record {
	__u32 type, tgid;
	__u64 id, code;
	__u64 lines_length;	/* of the whole line table; the record may have only its head */
	__u64 name_length, file_length;	/* in characters */
	__u32 first_line, flags;	/* flags: of the process */
	__u8 name_kind, file_kind;	/* bytes per character; 0: not readable */
	__u16 lines_kept;
	__u32 pad;
	char name[CODE_NAME_BYTES];	/* its head */
	char file[CODE_FILE_BYTES];	/* its tail, which has the file's name */
	char lines[CODE_LINES_BYTES];
};

/* The Python stack of a waiting thread, read by user space before the walk over all threads; see python_stack_of. */
struct python_seed {
	__u64 runs;	/* sched_info.pcount: the stack is valid while it is unchanged */
	__u64 stack;
};

#endif
