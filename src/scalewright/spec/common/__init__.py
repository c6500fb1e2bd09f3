"""Text for people and on disk: numbers, dotted keys, files written whole, JSON lines, files of others."""
