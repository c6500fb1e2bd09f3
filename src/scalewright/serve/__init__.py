"""Using a trained model: text from a checkpoint or a Hugging Face folder."""
