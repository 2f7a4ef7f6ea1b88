"""Readers of what reports only collectives: Flight Recorder dumps and NCCL Inspector logs."""
