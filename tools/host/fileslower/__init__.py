"""fileslower: slow synchronous file operations, by path."""
