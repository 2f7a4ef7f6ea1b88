"""Stack samples: the one model of them, and readers and writers of the formats people have."""
