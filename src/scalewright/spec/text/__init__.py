"""Text that people and files hold: words for numbers, whole and safe files, JSON lines, files of others."""
