"""Hybrid I/O: per request buffered or direct, by size and memory pressure.

This room runs inside training processes: it imports the standard library only. The policy and the engine are in C
(`src/`), used by Python through ctypes and by unmodified programs through LD_PRELOAD.
"""
