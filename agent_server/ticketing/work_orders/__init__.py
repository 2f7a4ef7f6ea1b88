"""Import work orders of other systems as tickets, each once."""
