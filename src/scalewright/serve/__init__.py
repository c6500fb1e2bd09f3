"""Text from a checkpoint or a Hugging Face folder: load.py, generate.py, text.py."""
