"""Use what was trained: text from a checkpoint or a Hugging Face folder."""
