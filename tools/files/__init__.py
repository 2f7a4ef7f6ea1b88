"""Files: bounded reading of untrusted input, atomic output, the wire format of protobuf."""
