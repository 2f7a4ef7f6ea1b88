"""page_cache: who fills the page cache, and who suffers from it."""
