/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The frames of a CPython interpreter, read from the memory of the current thread. User space provides the offsets per
 * process (bpf/python_offsets.py). Every read may fail, since nothing is paged in; nothing read is trusted: it is used as
 * a number, or as text that user space cleans.
 */
#ifndef WHYSTALL_PYTHON_H
#define WHYSTALL_PYTHON_H

#include "accelerator_call.bpf.h"
#include "stacks.bpf.h"

/* Entry frames of C calls have no Python code and are skipped: more frames are walked than kept. */
#define PYTHON_TURNS (STACK_DEPTH + STACK_DEPTH / 2)
#define PYTHON_THREADS 512		/* most thread states searched */
#define PYTHON_THREADS_PLAIN 64
#define PYTHON_RETRY_NS 10000000	/* between searches for the state of a thread without one (just after a fork) */
#define PYTHON_CODES_PER_WALK 64	/* most code objects emitted per walk: the others when the stack recurs */
#define PYTHON_OWNED_BY_C 3		/* owners from this value on: the C evaluator (3.12 and later) */
/* Budget of walks at switches, per CPU: 10 ms in a second, 1 %. */
#define PYTHON_SECOND_NS 1000000000
#define PYTHON_BUDGET_NS 10000000

/* The interpreter by process id; written by user space, and at a fork. */
HASH_MAP(python_processes, __u32, struct python_process, 4096);

struct python_thread {
	__u64 state;	/* address of its thread state; 0: none found */
	__u64 searched;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct python_thread);
} python_threads SEC(".maps");

/* Code objects that user space knows. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u8);
} codes_emitted SEC(".maps");

HASH_MAP(python_seeds, __u32, struct python_seed, 16384);

struct python_buffer {
	__u64 since, spent;
	__u8 bytes[PYTHON_BYTES + 8];
	__u64 codes[STACK_DEPTH];
	__u64 table[CODE_IDENTITY_BYTES / 8];
	struct code_record record;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SCRATCH_USERS);
	__type(key, __u32);
	__type(value, struct python_buffer);
} python_buffers SEC(".maps");

static __always_inline struct python_buffer *python_buffer(__u32 user)
{
	return bpf_map_lookup_elem(&python_buffers, &user);
}

static __always_inline __u64 word_at(struct python_buffer *buffer, __u64 offset)
{
	offset &= PYTHON_BYTES - 1;
	asm volatile("" : "+r"(offset));
	return *(__u64 *)(buffer->bytes + offset);
}

/* Returns pthread_self of the current thread (3.10), or its thread id in its own pid namespace. */
static __always_inline __u64 python_thread_number(struct task_struct *task, const struct python_process *process)
{
	struct pid *pid;
	__u32 level;
	int number = 0;

	if (process->flags & PYTHON_THREAD_BY_POINTER) {
#if defined(__TARGET_ARCH_x86)
		return BPF_CORE_READ(task, thread.fsbase) - process->pthread_bytes;
#else
		return BPF_CORE_READ(task, thread.uw.tp_value) - process->pthread_bytes;
#endif
	}
	pid = BPF_CORE_READ(task, thread_pid);
	level = BPF_CORE_READ(pid, level);
	bpf_core_read(&number, sizeof(number),
		      (char *)pid + bpf_core_field_offset(struct pid, numbers) + level * bpf_core_type_size(struct upid));
	return number;
}

struct python_search {
	const struct python_process *process;
	__u64 wanted, interpreter, state, found, frame;
};

/* The innermost frame of a thread state; 0: none. */
static __always_inline __u64 python_frame_of(const struct python_process *process, __u64 state)
{
	__u64 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)(state + process->thread_frame));
	if (value && process->flags & PYTHON_CFRAME)
		bpf_probe_read_user(&value, sizeof(value), (void *)(value + process->cframe_frame));
	return value;
}

/* Whether the process has more than one interpreter: a thread may then have a state in each. */
static __always_inline bool python_interpreters(const struct python_process *process)
{
	__u64 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)process->interpreters);
	if (value)
		bpf_probe_read_user(&value, sizeof(value), (void *)(value + process->interpreter_next));
	return value != 0;
}

/*
 * One step of the search in the lists of interpreters and their threads, newest first. Steps of loops are not inlined:
 * in the plain loops of the build for old kernels they would exceed the verifier's limit.
 */
static __noinline long python_search_step(__u32 i, struct python_search *search)
{
	const struct python_process *process = search->process;
	__u64 value = 0;

	if (!search->state) {
		bpf_probe_read_user(&value, sizeof(value), (void *)(search->interpreter + process->interpreter_next));
		search->interpreter = value;
		if (!value)
			return 1;
		bpf_probe_read_user(&value, sizeof(value), (void *)(value + process->interpreter_threads));
		search->state = value;
		return 0;
	}
	bpf_probe_read_user(&value, sizeof(value), (void *)(search->state + process->thread_id));
	if (value == search->wanted) {
		search->found = search->state;
		search->frame = python_frame_of(process, search->state);
		if (search->frame)	/* without a frame it is idle here, and may run in an older interpreter */
			return 1;
	}
	if (bpf_probe_read_user(&value, sizeof(value), (void *)(search->state + process->thread_next)))
		return 1;
	search->state = value;
	return 0;
}

/* The innermost frame of the current thread; 0: none. */
static __always_inline __u64 python_innermost(const struct python_process *process, __u32 tid, __u64 now)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct python_search search = { .process = process };
	struct python_thread *known = bpf_map_lookup_elem(&python_threads, &tid), fresh = {};
	__u64 value = 0, state = 0;

	search.wanted = python_thread_number(task, process);
	if (!search.wanted)
		return 0;
	if (known && known->state) {
		if (!python_interpreters(process))
			bpf_probe_read_user(&value, sizeof(value), (void *)(known->state + process->thread_id));
		if (value == search.wanted)
			state = known->state;
	} else if (known && now - known->searched < PYTHON_RETRY_NS) {
		return 0;
	}
	if (!state) {
		if (bpf_probe_read_user(&search.interpreter, sizeof(search.interpreter), (void *)process->interpreters)
		    || !search.interpreter)
			return 0;
		bpf_probe_read_user(&search.state, sizeof(search.state),
				    (void *)(search.interpreter + process->interpreter_threads));
		REPEAT(PYTHON_THREADS, PYTHON_THREADS_PLAIN, python_search_step, &search);
		state = search.found;
		fresh.state = state;
		fresh.searched = now;
		bpf_map_update_elem(&python_threads, &tid, &fresh, BPF_ANY);
		return state ? search.frame : 0;
	}
	return python_frame_of(process, state);
}

struct python_walk {
	const struct python_process *process;
	struct python_buffer *buffer;
	struct scratch *scratch;
	__u64 frame;
	__u32 depth, tgid;
	__u32 broken, pad;
};

static __always_inline __u64 mixed(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

/* Mixes the first bytes at `data` of a line table into `hash`. */
static __always_inline __u64 python_lines_mixed(struct python_buffer *buffer, __u64 data, __u64 bytes, __u64 hash)
{
	__builtin_memset(buffer->table, 0, sizeof(buffer->table));
	if (bytes > sizeof(buffer->table))
		bytes = sizeof(buffer->table);
	asm volatile("" : "+r"(bytes));
	if (bytes <= sizeof(buffer->table))
		bpf_probe_read_user(buffer->table, bytes, (void *)data);
	for (__u32 at = 0; at < CODE_IDENTITY_BYTES / 8; at++)
		hash = mixed(hash, buffer->table[at]);
	return hash;
}

static __always_inline __u64 python_word(__u64 address)
{
	__u64 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)address);
	return value;
}

/*
 * Returns the id (40 bits) of a code object, and reads its head into the buffer; 0: not a code object. The address alone
 * is ambiguous, since freed memory is reused at once, as is what the object points to. Its unique number and the cached
 * hash of its name (after the text's length) are mixed in; before 3.12, which has no number, the end of its path and
 * both ends of its line table. bpf/python_walk.py computes the same.
 */
static __always_inline __u64 python_code_id(const struct python_process *process, struct python_buffer *buffer,
					    __u64 code, __u32 tgid)
{
	__u32 bytes = process->code_lines + 8;
	__u64 hash, name, file, lines, length;

	if (bytes > PYTHON_BYTES || bpf_probe_read_user(buffer->bytes, bytes, (void *)code))
		return 0;
	if (process->code_type && word_at(buffer, 8) != process->code_type)
		return 0;
	hash = mixed(0xcbf29ce484222325ULL + tgid, code);
	hash = mixed(hash, word_at(buffer, process->code_name));
	hash = mixed(hash, word_at(buffer, process->code_file));
	hash = mixed(hash, word_at(buffer, process->code_lines));
	hash = mixed(hash, (__u32)word_at(buffer, process->code_line));
	name = word_at(buffer, process->code_name);
	file = word_at(buffer, process->code_file);
	lines = word_at(buffer, process->code_lines);
	hash = mixed(hash, python_word(name + process->text_length + 8));
	if (process->code_version) {
		hash = mixed(hash, (__u32)word_at(buffer, process->code_version));
	} else {
		length = python_word(file + process->text_length);
		hash = mixed(hash, length);
		file += process->text_ascii + (length > 16 ? length - 16 : 0);
		hash = mixed(hash, python_word(file));
		hash = mixed(hash, python_word(file + 8));
		length = python_word(lines + process->bytes_length);
		hash = mixed(hash, length);
		lines += process->bytes_data;
		hash = python_lines_mixed(buffer, lines, length, hash);
		if (length > CODE_IDENTITY_BYTES)
			hash = python_lines_mixed(buffer, lines + length - CODE_IDENTITY_BYTES,
						  CODE_IDENTITY_BYTES, hash);
	}
	return (hash >> FRAME_CODE_SHIFT) | 1;
}

static __noinline long python_frame(__u32 i, struct python_walk *walk)
{
	const struct python_process *process = walk->process;
	struct python_buffer *buffer = walk->buffer;
	__u64 code, id, instruction, word, owner, depth = walk->depth;
	__u32 bytes = process->frame_bytes;

	if (!walk->frame || depth >= STACK_DEPTH)
		return 1;
	if (bytes > PYTHON_BYTES || bpf_probe_read_user(buffer->bytes, bytes, (void *)walk->frame)) {
		walk->broken = 1;
		return 1;
	}
	code = word_at(buffer, process->frame_code) & ~7ULL;	/* 3.14 tags references in the lowest bits */
	instruction = word_at(buffer, process->frame_instruction);
	owner = word_at(buffer, process->frame_owner) & 0xff;
	walk->frame = word_at(buffer, process->frame_previous);
	if (!(process->flags & (PYTHON_FRAME_OBJECTS | PYTHON_IS_ENTRY)) && owner >= PYTHON_OWNED_BY_C) {
		asm volatile("" : "+r"(depth));
		if (depth && depth <= STACK_DEPTH)	/* the C call began with the previous frame */
			walk->scratch->stack.ip[depth - 1] |= FRAME_ENTRY;
		return 0;
	}
	id = python_code_id(process, buffer, code, walk->tgid);
	if (!id) {
		walk->broken = 1;
		return 1;
	}
	if (process->flags & PYTHON_FRAME_OBJECTS)
		instruction = (__u64)((__s32)instruction + 1);
	else
		instruction = ((__s64)(instruction - code - process->code_first) >> 1) + 1;
	word = id << FRAME_CODE_SHIFT;
	if (process->flags & PYTHON_FRAME_OBJECTS || (process->flags & PYTHON_IS_ENTRY && owner))
		word |= FRAME_ENTRY;
	if (instruction < FRAME_INSTRUCTION)
		word |= instruction;
	asm volatile("" : "+r"(depth));
	if (depth >= STACK_DEPTH)
		return 1;
	walk->scratch->stack.ip[depth] = word;
	buffer->codes[depth] = code;
	walk->depth = depth + 1;
	return 0;
}

/* Reads the head or tail of a string, at most `most` bytes (a power of two). Returns bytes per character; 0: failed. */
static __always_inline __u8 python_text(const struct python_process *process, __u64 object, char *to, __u32 most,
					bool tail, __u64 *length)
{
	__u64 characters = 0, data, bytes;
	__u32 state = 0, kind;

	bpf_probe_read_user(&characters, sizeof(characters), (void *)(object + process->text_length));
	bpf_probe_read_user(&state, sizeof(state), (void *)(object + process->text_state));
	kind = state >> 2 & 7;
	if (!(state & 1 << 5) || characters >> 32 || (kind != 1 && kind != 2 && kind != 4))
		return 0;
	data = object + (state & 1 << 6 ? process->text_ascii : process->text_compact);
	bytes = characters * kind;
	if (bytes > most) {
		if (tail)
			data += bytes - most;
		bytes = most;
	}
	asm volatile("" : "+r"(bytes));
	if (bytes > most || bpf_probe_read_user(to, bytes, (void *)data))
		return 0;
	*length = characters;
	return kind;
}

/* A global function, verified once. Returns 1 if the code object was emitted. */
__noinline int python_emit_code(__u32 user, __u64 code, __u64 id)
{
	struct python_buffer *buffer = python_buffer(user);
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	const struct python_process *process = bpf_map_lookup_elem(&python_processes, &tgid);
	struct code_record *record;
	__u64 lines, length = 0, kept;
	__u8 one = 1;

	if (!buffer || !process || python_code_id(process, buffer, code, tgid) != id)
		return 0;
	record = &buffer->record;
	record->type = RECORD_CODE;
	record->tgid = tgid;
	record->id = id;
	record->code = code;
	record->first_line = word_at(buffer, process->code_line);
	record->flags = process->flags;
	record->pad = 0;
	lines = word_at(buffer, process->code_lines);
	record->name_length = record->file_length = 0;
	record->name_kind = python_text(process, word_at(buffer, process->code_name), record->name, CODE_NAME_BYTES,
					false, &record->name_length);
	record->file_kind = python_text(process, word_at(buffer, process->code_file), record->file, CODE_FILE_BYTES,
					true, &record->file_length);
	bpf_probe_read_user(&length, sizeof(length), (void *)(lines + process->bytes_length));
	record->lines_length = length;
	kept = length < CODE_LINES_BYTES ? length : CODE_LINES_BYTES;
	asm volatile("" : "+r"(kept));
	if (kept > CODE_LINES_BYTES || bpf_probe_read_user(record->lines, kept, (void *)(lines + process->bytes_data)))
		kept = 0;
	record->lines_kept = kept;
	if (bpf_ringbuf_output(&ring, record, __builtin_offsetof(struct code_record, lines) + kept, ring_flags())) {
		count(LOST_RING_CODE);
		return 0;
	}
	bpf_map_update_elem(&codes_emitted, &id, &one, BPF_ANY);
	return 1;
}

struct python_emission {
	struct python_buffer *buffer;
	struct scratch *scratch;
	__u32 user, depth, emitted, pad;
};

static __noinline long python_emit_step(__u32 i, struct python_emission *emission)
{
	__u64 at = i, id;

	if (at >= emission->depth || emission->emitted >= PYTHON_CODES_PER_WALK)
		return 1;
	asm volatile("" : "+r"(at));
	if (at >= STACK_DEPTH)
		return 1;
	if ((emission->scratch->stack.ip[at] & FRAME_INSTRUCTION) == FRAME_INSTRUCTION)
		return 0;
	id = emission->scratch->stack.ip[at] >> FRAME_CODE_SHIFT;
	if (!bpf_map_lookup_elem(&codes_emitted, &id))
		emission->emitted += python_emit_code(emission->user, emission->buffer->codes[at], id) & 1;
	return 0;
}

/*
 * Puts the function of an accelerator's library in which the current thread is behind its `depth` frames, or in place of
 * the outermost if there are too many; returns the new depth. A global function: its result is one unknown number for the
 * verifier, which otherwise takes seconds.
 */
__noinline __u32 python_call(__u32 user, __u32 depth)
{
	__u32 function = accelerator_function(bpf_get_current_pid_tgid());
	struct scratch *buffer = scratch(user);
	__u64 at = depth;

	if (!function || !buffer)
		return depth;
	asm volatile("" : "+r"(at));
	if (at >= STACK_DEPTH)
		at = STACK_DEPTH - 1;
	buffer->stack.ip[at] = (__u64)function << FRAME_CODE_SHIFT | FRAME_INSTRUCTION;
	return at + 1;
}

__noinline __u64 python_stack(__u32 user)
{
	__u64 id = bpf_get_current_pid_tgid(), now, stack = 0;
	__u32 tgid = id >> 32;
	struct python_walk walk = { .tgid = tgid };
	struct python_emission emission = { .user = user };

	walk.process = bpf_map_lookup_elem(&python_processes, &tgid);
	if (!walk.process && !config.accelerator)
		return 0;
	walk.buffer = python_buffer(user);
	walk.scratch = scratch(user);
	if (!walk.buffer || !walk.scratch)
		return 0;
	now = bpf_ktime_get_ns();
	if (now - walk.buffer->since >= PYTHON_SECOND_NS) {
		walk.buffer->since = now;
		walk.buffer->spent = 0;
	}
	if ((user == SCRATCH_HOOK || user == SCRATCH_CALL) && walk.buffer->spent >= PYTHON_BUDGET_NS) {
		count(PYTHON_SKIPPED);
		return 0;
	}
	if (walk.process)
		walk.frame = python_innermost(walk.process, id, now);
	if (walk.frame)
		REPEAT(PYTHON_TURNS, PYTHON_TURNS, python_frame, &walk);
	if (config.accelerator)
		walk.depth = python_call(user, walk.depth);
	if (walk.depth && walk.depth <= STACK_DEPTH) {
		walk.scratch->stack.id = 0;	/* set where a stack is emitted */
		stack = keep_stack(user, walk.depth * 8, STACK_PYTHON);
		if (stack && walk.scratch->stack.id) {
			emission.buffer = walk.buffer;
			emission.scratch = walk.scratch;
			emission.depth = walk.depth;
			REPEAT(STACK_DEPTH, STACK_DEPTH, python_emit_step, &emission);
			if (emission.emitted >= PYTHON_CODES_PER_WALK)
				bpf_map_delete_elem(&stacks_emitted, &stack);
		}
		count(PYTHON_WALKS);
	}
	if (walk.broken)
		count(PYTHON_BROKEN);
	now = bpf_ktime_get_ns() - now;
	walk.buffer->spent += now;
	count_more(PYTHON_NS, now);
	return stack;
}

/*
 * Returns the id of the Python stack of the current task; 0: none that can be read. `user`: SCRATCH_HOOK at a switch away
 * (the task is still the current one), SCRATCH_SAMPLE at a sample, SCRATCH_CALL at a return of a user function.
 */
static __always_inline __u64 python_stack_here(__u32 user)
{
	return config.python ? python_stack(user) : 0;
}

/* Whether the current thread runs the garbage collector: it is active, and the thread holds the interpreter lock. */
static __always_inline bool python_collects(__u32 tgid, __u32 tid)
{
	struct python_process *process = bpf_map_lookup_elem(&python_processes, &tgid);
	struct python_thread *thread = bpf_map_lookup_elem(&python_threads, &tid);
	__u32 collecting = 0;

	if (!process || !process->collecting || !thread || !thread->state)
		return false;
	bpf_probe_read_user(&collecting, sizeof(collecting), (void *)process->collecting);
	return collecting == 1 && python_word(process->lock_holder) == thread->state;
}

/* Returns the id of the Python stack that user space read of a task that has not run since; 0: none. */
static __always_inline __u64 python_stack_of(struct task_struct *task)
{
	__u32 tid = task->pid;
	struct python_seed *seed;

	if (!config.python)
		return 0;
	seed = bpf_map_lookup_elem(&python_seeds, &tid);
	return seed && seed->runs == task->sched_info.pcount ? seed->stack : 0;
}

/* Copies the interpreter of a parent: a new process has its memory, until it executes another program. */
static __always_inline void python_child(__u32 parent, __u32 child)
{
	struct python_process *process, copy;

	if (!config.python)
		return;
	process = bpf_map_lookup_elem(&python_processes, &parent);
	if (!process)
		return;
	copy = *process;
	bpf_map_update_elem(&python_processes, &child, &copy, BPF_NOEXIST);
}

#endif
