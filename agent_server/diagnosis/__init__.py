"""The loop that finds out why a job stalls, and its drivers."""
