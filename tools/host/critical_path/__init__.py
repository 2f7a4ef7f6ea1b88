"""critical_path: account for the time of the thread that makes progress, through the threads that it waits for."""
