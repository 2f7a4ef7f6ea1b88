"""lock_wait: which threads wait for which lock, who holds it, and at which line."""
