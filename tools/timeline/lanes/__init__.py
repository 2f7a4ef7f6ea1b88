"""Lanes made from scheduling events: CPU occupancy, thread states and waits, interrupts."""
