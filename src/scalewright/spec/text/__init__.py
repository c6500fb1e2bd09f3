"""Text for people and on disk: numbers as words, files written whole, JSON lines, files that others wrote."""
