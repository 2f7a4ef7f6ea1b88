/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What user space had in its registers: struct pt_regs of the UAPI, which unlike the kernel's own is fixed. */
#ifndef WHYSTALL_USER_REGS_H
#define WHYSTALL_USER_REGS_H

#if defined(__TARGET_ARCH_x86)
struct user_regs { __u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp; };
#else
struct user_regs { __u64 regs[31], sp, pc, pstate; };
#endif

#endif
