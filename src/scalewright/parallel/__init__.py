"""Split the work over ranks: one technique, one file, one `apply_*`; all from outside the model."""
