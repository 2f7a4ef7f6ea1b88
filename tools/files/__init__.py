"""Files of others: packed input within bounds, output that is whole or absent, the wire format of protobuf."""
