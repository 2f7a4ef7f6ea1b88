"""collective_live: which rank enters which operation last, and who has not returned from one."""
