/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The system call a thread is in, and its arguments, from the registers saved on kernel entry. */
#ifndef WHYSTALL_REGS_BPF_H
#define WHYSTALL_REGS_BPF_H

#include "common.bpf.h"
#include "regs.h"

/* Returns the number of the system call in progress; -1 after a fault or interrupt from user mode. */
static __always_inline __s32 regs_syscall(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	if (config.pt_regs_helper)	/* then the verifier knows the type of all saved registers */
		return regs->orig_ax;
	return BPF_CORE_READ(regs, orig_ax);
#else
	if (config.pt_regs_helper)
		return regs->syscallno;
	return BPF_CORE_READ(regs, syscallno);
#endif
}

static __always_inline __u64 regs_sp(struct pt_regs *regs)
{
	return config.pt_regs_helper ? regs->sp : BPF_CORE_READ(regs, sp);
}

static __always_inline __u64 regs_ip(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return config.pt_regs_helper ? regs->ip : BPF_CORE_READ(regs, ip);
#else
	return config.pt_regs_helper ? regs->pc : BPF_CORE_READ(regs, pc);
#endif
}

/* Returns a descriptor argument, faster if it is the first, as nearly always. */
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

/* Whether saved_regs is valid: kernel threads have no saved registers. */
static __always_inline bool has_user_side(struct task_struct *task)
{
	return !(task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER));
}

#endif
