/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The system call a thread is in, and its arguments, from the registers saved on kernel entry. */
#ifndef WHYSTALL_REGS_BPF_H
#define WHYSTALL_REGS_BPF_H

#include "common.bpf.h"
#include "regs.h"

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

/* Threads without a user side have nothing there; theirs would be read as numbers. */
static __always_inline bool has_user_side(struct task_struct *task)
{
	return !(task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER));
}

#endif
