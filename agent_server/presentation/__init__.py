"""Text and pages shown to people, made from results in the reader's language."""
