"""Check what a model claims against the findings of a case; imports nothing else of the diagnosis."""
