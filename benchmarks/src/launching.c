/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library with functions of the CUDA driver's names: two that return at once, and one that waits off the CPU. The
 * kernel emulates the first instruction of cuLaunchKernel, as of most functions of real libraries, which save a register
 * first; it must step through a copy of that of cuLaunchKernelEx.
 */
#include <time.h>

#if defined(__x86_64__)
__attribute__((naked)) int cuLaunchKernel(void)
{
	__asm__("push %rbx; pop %rbx; xor %eax, %eax; ret");
}

__attribute__((naked)) int cuLaunchKernelEx(void)
{
	__asm__("xor %eax, %eax; ret");
}
#else
__attribute__((noinline)) int cuLaunchKernel(void)
{
	__asm__ volatile("" : : : "memory");
	return 0;
}

__attribute__((noinline)) int cuLaunchKernelEx(void)
{
	__asm__ volatile("" : : : "memory");
	return 1;
}
#endif

__attribute__((noinline)) int cuStreamSynchronize(void)
{
	struct timespec t = {0, 1000000};

	return nanosleep(&t, 0);
}

int emulated(int calls)
{
	while (calls--)
		cuLaunchKernel();
	return 0;
}

int stepped(int calls)
{
	while (calls--)
		cuLaunchKernelEx();
	return 0;
}
