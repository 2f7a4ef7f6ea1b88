/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The scheduling trace: a record per event. Which programs are loaded is chosen before the load. Events of a CPU are
 * nearly in order (an interrupt may come between reserving a record and reading the clock); user space sorts them.
 */
#include "common.bpf.h"
#include "preemption.bpf.h"
#include "regs.bpf.h"
#include "request.h"
#include "trace_records.h"

#define MAX_CPUS 8192

const volatile __u64 wanted_cpus[MAX_CPUS / 64] SEC(".rodata.wanted_cpus") = {};
const volatile __u8 wanted_calls[SYSCALL_ROWS] SEC(".rodata.wanted_calls") = {};

/* Unused: adds these structs to the object's BTF. */
const struct {
	struct trace_record record;
	struct thread_name name;
} described SEC(".rodata.described") = {};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trace_loss);
} losses SEC(".maps");

/*
 * Per CPU: our clock less its run queue's, the least in this span and in the one before, used after CLOCK_READS reads.
 * They drift apart by less than 500 ppm (adjtimex).
 */
#define CLOCK_SPAN_NS 200000000
#define CLOCK_READS 16

struct trace_clock {
	__u64 began, reads;
	__s64 least, before;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, __u32);
	__type(value, struct trace_clock);
} clocks SEC(".maps");

static __always_inline __u32 running_on(void)
{
	return bpf_get_smp_processor_id();
}

static __always_inline bool cpu_wanted(void)
{
	__u32 cpu = running_on();

	return config.all_cpus || (cpu < MAX_CPUS && wanted_cpus[cpu / 64] >> cpu % 64 & 1);
}

/* With targets: only their events; else all, the tracer's too, since a CPU's trace must have no gaps. */
static __always_inline bool wanted(__u32 tgid)
{
	return !config.target || is_target(tgid);
}

static __always_inline __u32 current_tgid(void)
{
	return bpf_get_current_pid_tgid() >> 32;
}

static __always_inline struct trace_record *take(void)
{
	struct trace_record *record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);

	if (!record)
		return 0;
	__builtin_memset(record, 0, sizeof(*record));
	record->at = bpf_ktime_get_ns();
	record->cpu = running_on();
	return record;
}

static __always_inline void emit(struct trace_record *record)
{
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);	/* user space polls */
}

/* Returns a new record in the context of the current thread; 0 without space, which is counted. */
static __always_inline struct trace_record *begin(enum trace_type type)
{
	struct trace_record *record, *lost;
	struct trace_loss *loss;
	__u32 zero = 0;
	__u64 n;

	if (!window_open())
		return 0;
	loss = bpf_map_lookup_elem(&losses, &zero);
	if (!loss)
		return 0;
	record = take();
	if (!record) {
		if (!loss->count)
			loss->first = bpf_ktime_get_ns();
		__sync_fetch_and_add(&loss->count, 1);
		return 0;
	}
	record->type = type;
	record->tid = bpf_get_current_pid_tgid();
	n = loss->count;
	if (!n)
		return record;
	lost = take();
	if (lost) {
		lost->type = TRACE_LOST;
		lost->a = loss->first;
		lost->b = n;
		__sync_fetch_and_add(&loss->count, -n);
		emit(lost);
	}
	return record;
}

static __always_inline void put_comm(struct trace_record *record, struct task_struct *task)
{
	record->b = *(__u64 *)&task->comm[0];
	record->c = *(__u64 *)&task->comm[8];
}

static __always_inline __u8 context(void)
{
	__u32 n = 0;

	if (!read_preempt_count(current_task(), &n))
		return 0;
	if (n & IN_NMI)
		return TRACE_NMI;
	if (n & IN_HARDIRQ)
		return TRACE_HARDIRQ;
	return n & IN_SOFTIRQ ? TRACE_SOFTIRQ : TRACE_TASK;
}

/*
 * Updates the difference between our clock and that of the task's run queue, which is locked. The kernel updates a run
 * queue's clock at every wake-up, but not at every switch: one requested by a wake-up may come milliseconds later, after
 * softirqs, without an update (rq_clock_skip_update). The least recent difference is the most accurate.
 */
static __always_inline struct trace_clock *read_clock(struct task_struct *task, __u64 now)
{
	__u32 cpu = cpu_of(task);
	struct trace_clock *known = bpf_map_lookup_elem(&clocks, &cpu);
	__u64 clock;
	__s64 ahead;

	if (!known || !bpf_core_field_exists(task->se.cfs_rq))
		return 0;
	clock = task->se.cfs_rq->rq->clock;
	if (!clock)
		return 0;
	ahead = now - clock;
	if (!known->reads || now - known->began > CLOCK_SPAN_NS) {
		known->before = known->reads ? known->least : ahead;
		known->least = ahead;
		known->began = now;
	} else if (ahead < known->least) {
		known->least = ahead;
	}
	if (known->reads < CLOCK_READS)
		known->reads++;
	return known;
}

/*
 * Returns since when a thread that is switched away had its CPU, by the scheduler's accounting, which includes switches
 * that the kernel does not report; 0: unknown, as for the idle thread. It may be too early, if the clock was not updated
 * for that switch, never too late.
 */
static __always_inline __u64 arrived(struct task_struct *task, __u64 now)
{
	struct trace_clock *known = read_clock(task, now);
	__u64 last = task->sched_info.last_arrival;

	if (!known || known->reads < CLOCK_READS || !task->pid || !last)
		return 0;
	last += known->before < known->least ? known->before : known->least;
	return last <= now ? last : 0;
}

SEC("tp_btf/sched_switch")
int trace_switch(__u64 *ctx)
{
	struct task_struct *prev = (struct task_struct *)ctx[1];
	struct task_struct *next = (struct task_struct *)ctx[2];
	struct trace_record *record;
	__u32 state;

	if (prev->tgid == config.self_tgid)	/* on any CPU: verifies that the hook works */
		count(SELF_SWITCHES);
	if (!cpu_wanted() || (!wanted(prev->tgid) && !wanted(next->tgid)))
		return 0;
	record = begin(TRACE_SWITCH);
	if (!record)
		return 0;
	state = config.switch_has_state ? (__u32)ctx[3] : task_state(prev);
	record->tid = prev->pid;
	record->other = next->pid;
	record->a = arrived(prev, record->at);
	put_comm(record, next);
	record->value = state | prev->exit_state;
	record->flags = ctx[0] & 1 ? TRACE_PREEMPTED : 0;
	record->prio = prev->prio;
	record->prio2 = next->prio;
	emit(record);
	return 0;
}

static __always_inline int emit_wake(struct task_struct *task, enum trace_type type)
{
	struct trace_record *record;

	if (!cpu_wanted() || (!wanted(task->tgid) && !wanted(current_tgid())))
		return 0;
	record = begin(type);
	if (!record)
		return 0;
	record->other = task->pid;
	record->a = task->tgid;
	put_comm(record, task);
	record->prio2 = task->prio;
	record->value = cpu_of(task);
	record->flags = context();
	if (type == TRACE_WAKEUP)
		read_clock(task, record->at);
	emit(record);
	return 0;
}

SEC("tp_btf/sched_waking")
int trace_waking(__u64 *ctx)
{
	return emit_wake((struct task_struct *)ctx[0], TRACE_WAKING);
}

SEC("tp_btf/sched_wakeup")
int trace_wakeup(__u64 *ctx)
{
	return emit_wake((struct task_struct *)ctx[0], TRACE_WAKEUP);
}

SEC("tp_btf/sched_wakeup_new")
int trace_wakeup_new(__u64 *ctx)
{
	return emit_wake((struct task_struct *)ctx[0], TRACE_NEW);
}

/* (task, CPU it goes to) */
SEC("tp_btf/sched_migrate_task")
int trace_migrate(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct trace_record *record;

	if (!cpu_wanted() || !wanted(task->tgid))
		return 0;
	record = begin(TRACE_MIGRATE);
	if (!record)
		return 0;
	record->other = task->pid;
	record->value = cpu_of(task);
	record->a = (__u32)ctx[1];
	emit(record);
	return 0;
}

/* Starts a record of a thread's name, on any CPU. */
static __always_inline struct trace_record *begin_task(struct task_struct *task, enum trace_type type)
{
	struct trace_record *record;

	if (!wanted(task->tgid))
		return 0;
	record = begin(type);
	if (!record)
		return 0;
	record->a = task->tgid;
	put_comm(record, task);
	return record;
}

/* (parent, child) */
SEC("tp_btf/sched_process_fork")
int trace_fork(__u64 *ctx)
{
	struct task_struct *child = (struct task_struct *)ctx[1];
	struct trace_record *record;

	if (config.follow)
		follow_child((struct task_struct *)ctx[0], child);
	record = begin_task(child, TRACE_FORK);
	if (!record)
		return 0;
	record->other = child->pid;
	emit(record);
	return 0;
}

/* (task, its thread id before, what is executed) */
SEC("tp_btf/sched_process_exec")
int trace_exec(__u64 *ctx)
{
	struct trace_record *record = begin_task((struct task_struct *)ctx[0], TRACE_EXEC);

	if (!record)
		return 0;
	record->other = (__s32)ctx[1];
	emit(record);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int trace_exit(__u64 *ctx)
{
	struct trace_record *record = begin_task((struct task_struct *)ctx[0], TRACE_EXIT);

	if (record)
		emit(record);
	return 0;
}

/* (task, its new name); emitted before the change. A process may rename its other threads. */
SEC("tp_btf/task_rename")
int trace_rename(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct trace_record *record = begin_task(task, TRACE_RENAME);

	if (!record)
		return 0;
	record->other = task->pid;
	record->b = record->c = 0;
	bpf_probe_read_kernel_str(&record->b, COMM_BYTES, (void *)ctx[1]);
	emit(record);
	return 0;
}

static __always_inline struct trace_record *begin_interrupt(enum trace_type type, __u16 number)
{
	struct trace_record *record;

	if (!cpu_wanted() || !wanted(current_tgid()))
		return 0;
	record = begin(type);
	if (record)
		record->value = number;
	return record;
}

/* (number, whose handler) */
SEC("tp_btf/irq_handler_entry")
int trace_irq_entry(__u64 *ctx)
{
	struct irqaction *action = (struct irqaction *)ctx[1];
	struct trace_record *record = begin_interrupt(TRACE_IRQ_ENTRY, ctx[0]);

	if (!record)
		return 0;
	bpf_probe_read_kernel_str(&record->a, 3 * sizeof(record->a), (void *)action->name);
	emit(record);
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int trace_irq_exit(__u64 *ctx)
{
	struct trace_record *record = begin_interrupt(TRACE_IRQ_EXIT, ctx[0]);

	if (record)
		emit(record);
	return 0;
}

SEC("tp_btf/softirq_entry")
int trace_softirq_entry(__u64 *ctx)
{
	struct trace_record *record = begin_interrupt(TRACE_SOFTIRQ_ENTRY, ctx[0]);

	if (record)
		emit(record);
	return 0;
}

SEC("tp_btf/softirq_exit")
int trace_softirq_exit(__u64 *ctx)
{
	struct trace_record *record = begin_interrupt(TRACE_SOFTIRQ_EXIT, ctx[0]);

	if (record)
		emit(record);
	return 0;
}

static __always_inline struct trace_record *begin_call(enum trace_type type, __s32 nr)
{
	struct trace_record *record;
	struct task_struct *task;
	__u64 index = (__u32)nr;

	if (index >= SYSCALL_ROWS)
		return 0;
	asm volatile("" : "+r"(index));	/* keeps the address from being formed before the check */
	if (!wanted_calls[index & (SYSCALL_ROWS - 1)])
		return 0;
	if (!cpu_wanted() || !wanted(current_tgid()))
		return 0;
	task = current_task();
	if (task_is_compat(task)) {
		count(LOST_COMPAT_SKIPPED);
		return 0;
	}
	record = begin(type);
	if (record)
		record->other = nr;
	return record;
}

/* (registers, number) */
SEC("tp_btf/sys_enter")
int trace_sys_enter(__u64 *ctx)
{
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	struct trace_record *record = begin_call(TRACE_SYS_ENTER, ctx[1]);

	if (!record)
		return 0;
#if defined(__TARGET_ARCH_x86)
	record->a = regs->di;
	record->b = regs->si;
	record->c = regs->dx;
#else
	record->a = regs->orig_x0;
	record->b = regs->regs[1];
	record->c = regs->regs[2];
#endif
	emit(record);
	return 0;
}

/* (registers, result) */
SEC("tp_btf/sys_exit")
int trace_sys_exit(__u64 *ctx)
{
	struct trace_record *record = begin_call(TRACE_SYS_EXIT, regs_syscall((struct pt_regs *)ctx[0]));

	if (!record)
		return 0;
	record->a = ctx[1];
	emit(record);
	return 0;
}

/* (value, CPU) */
static __always_inline int emit_power(__u64 *ctx, enum trace_type type)
{
	struct trace_record *record;

	if (!cpu_wanted())
		return 0;
	record = begin(type);
	if (!record)
		return 0;
	record->a = (__s64)(__s32)ctx[0];
	record->value = ctx[1];
	emit(record);
	return 0;
}

SEC("tp_btf/cpu_idle")
int trace_idle(__u64 *ctx)
{
	return emit_power(ctx, TRACE_IDLE);
}

SEC("tp_btf/cpu_frequency")
int trace_frequency(__u64 *ctx)
{
	return emit_power(ctx, TRACE_FREQUENCY);
}

static __always_inline int emit_request(struct request *rq, enum trace_type type, __u32 bytes)
{
	struct trace_record *record;
	struct gendisk *disk;

	if (!cpu_wanted() || !wanted(current_tgid()))
		return 0;
	record = begin(type);
	if (!record)
		return 0;
	disk = request_disk(rq);
	record->a = BPF_CORE_READ(rq, __sector);
	record->b = bytes;
	if (disk)
		record->c = BPF_CORE_READ(disk, major) << 20 | BPF_CORE_READ(disk, first_minor);
	record->value = block_op(BPF_CORE_READ(rq, cmd_flags));
	emit(record);
	return 0;
}

SEC("tp_btf/block_rq_insert")
int trace_insert(__u64 *ctx)
{
	struct request *rq = block_argument(ctx);

	return emit_request(rq, TRACE_BLOCK_INSERT, BPF_CORE_READ(rq, __data_len));
}

SEC("tp_btf/block_rq_issue")
int trace_issue(__u64 *ctx)
{
	struct request *rq = block_argument(ctx);

	return emit_request(rq, TRACE_BLOCK_ISSUE, BPF_CORE_READ(rq, __data_len));
}

/* (request, error, bytes) */
SEC("tp_btf/block_rq_complete")
int trace_complete(__u64 *ctx)
{
	return emit_request((struct request *)ctx[0], TRACE_BLOCK_COMPLETE, ctx[2]);
}

/* Lists all threads, when the trace begins and ends. */
SEC("iter/task")
int name_all(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_name name = {};

	if (!task)
		return 0;
	name.tid = task->pid;
	name.tgid = task->tgid;
	BPF_CORE_READ_INTO(&name.comm, task, comm);
	bpf_seq_write(ctx->meta->seq, &name, sizeof(name));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
