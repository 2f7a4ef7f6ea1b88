"""critical_path: where the time of the thread that makes progress goes, through the threads that it waits for."""
