"""The network: one plain decoder from small parts, and the way in and out of Hugging Face's files."""
