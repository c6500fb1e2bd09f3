"""Use what was trained: one engine (paged cache, continuous batching), text from it, and a server before it."""
