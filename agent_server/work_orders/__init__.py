"""A backlog of work orders: read, classified, made tickets of, and scored against labels."""
