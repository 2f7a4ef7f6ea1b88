"""Tables of a job's ranks from any tool, by one declarative mapping (`mappings.yaml`) onto one model (`rows.ROWS`)."""
