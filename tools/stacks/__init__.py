"""Stack samples: one model, and readers and writers of the common formats."""
