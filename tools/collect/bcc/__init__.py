"""The ``bcc`` engine: stock BCC tools, and programs of our own that BCC compiles on this host."""
