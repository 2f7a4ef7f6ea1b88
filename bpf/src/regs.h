/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Shared with bpf/src_bcc. System call arguments, from the registers saved on kernel entry. */
#ifndef WHYSTALL_REGS_H
#define WHYSTALL_REGS_H

static __always_inline __u64 regs_arg(struct pt_regs *regs, __u8 which)
{
#if defined(__TARGET_ARCH_x86)
	if (which == 0)
		return READ(regs, di);
	if (which == 1)
		return READ(regs, si);
	if (which == 2)
		return READ(regs, dx);
	if (which == 3)
		return READ(regs, r10);
	if (which == 4)
		return READ(regs, r8);
	return READ(regs, r9);
#else
	if (which == 0)		/* regs[0] becomes the result */
		return READ(regs, orig_x0);
	if (which == 1)
		return READ(regs, regs[1]);
	if (which == 2)
		return READ(regs, regs[2]);
	if (which == 3)
		return READ(regs, regs[3]);
	if (which == 4)
		return READ(regs, regs[4]);
	return READ(regs, regs[5]);
#endif
}

/* The system calls of 32-bit programs have other numbers. */
static __always_inline bool task_is_compat(struct task_struct *task)
{
#if defined(__TARGET_ARCH_x86)
	return OF_TASK(task, thread_info.status) & 0x2;		/* TS_COMPAT */
#else
	return OF_TASK(task, thread_info.flags) & (1UL << 22);	/* TIF_32BIT */
#endif
}

#endif
