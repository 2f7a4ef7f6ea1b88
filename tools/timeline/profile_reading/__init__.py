"""What readers of accelerator profiles share: JSON and SQLite input, numbers, groups, building a Profile."""
