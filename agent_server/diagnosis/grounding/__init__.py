"""Check the text of a claim against the findings it cites; imports nothing else of the diagnosis."""
