/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The system call a thread is in, and its arguments, from the registers saved on kernel entry. */
#ifndef WHYSTALL_REGS_H
#define WHYSTALL_REGS_H

#include "common.bpf.h"

/* Faults and interrupts from user mode leave -1 here, so this is a call or nothing. */
static __always_inline __s32 regs_syscall(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	if (config.pt_regs_helper)	/* then the verifier knows all registers we meet */
		return regs->orig_ax;
	return BPF_CORE_READ(regs, orig_ax);
#else
	if (config.pt_regs_helper)
		return regs->syscallno;
	return BPF_CORE_READ(regs, syscallno);
#endif
}

static __always_inline __u64 regs_arg(struct pt_regs *regs, __u8 which)
{
#if defined(__TARGET_ARCH_x86)
	if (which == 0)
		return BPF_CORE_READ(regs, di);
	if (which == 1)
		return BPF_CORE_READ(regs, si);
	if (which == 2)
		return BPF_CORE_READ(regs, dx);
	if (which == 3)
		return BPF_CORE_READ(regs, r10);
	if (which == 4)
		return BPF_CORE_READ(regs, r8);
	return BPF_CORE_READ(regs, r9);
#else
	if (which == 0)		/* regs[0] becomes the result */
		return BPF_CORE_READ(regs, orig_x0);
	if (which == 1)
		return BPF_CORE_READ(regs, regs[1]);
	if (which == 2)
		return BPF_CORE_READ(regs, regs[2]);
	if (which == 3)
		return BPF_CORE_READ(regs, regs[3]);
	if (which == 4)
		return BPF_CORE_READ(regs, regs[4]);
	return BPF_CORE_READ(regs, regs[5]);
#endif
}

/* A descriptor: nearly always the first argument. */
static __always_inline __s32 fd_arg(struct pt_regs *regs, __u8 which)
{
	if (which || !config.pt_regs_helper)
		return regs_arg(regs, which);
#if defined(__TARGET_ARCH_x86)
	return regs->di;
#else
	return regs->orig_x0;
#endif
}

/* System call numbers of 32-bit programs mean other calls. */
static __always_inline bool task_is_compat(struct task_struct *task)
{
#if defined(__TARGET_ARCH_x86)
	const __u32 compat = 0x2;	/* TS_COMPAT */

	return OF_TASK(task, thread_info.status) & compat;
#else
	const unsigned long compat = 1 << 22;	/* TIF_32BIT */

	return OF_TASK(task, thread_info.flags) & compat;
#endif
}

/* Threads without a user side have nothing there; theirs would be read as numbers. */
static __always_inline bool has_user_side(struct task_struct *task)
{
	return !(task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER));
}

#endif
