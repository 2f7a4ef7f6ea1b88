"""Readers of Ascend profiles: torch_npu, MindSpore and msprof."""
