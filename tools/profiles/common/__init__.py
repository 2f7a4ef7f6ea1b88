"""Code shared by the tools that judge stack samples."""
