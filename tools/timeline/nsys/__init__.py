"""Reader of Nsight Systems' SQLite exports."""
