"""Crash reports in logs: of the kernel, of programs, and which process of a job failed first. Pure but for opening."""
