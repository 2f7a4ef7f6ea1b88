"""Crash-safe state of the server: alerts, tasks, messages, deliveries, audit log."""
