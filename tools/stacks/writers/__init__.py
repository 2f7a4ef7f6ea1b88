"""Writers of stack sample formats."""
