"""What is to be run, on what, and how it is split: plain, validated data that knows no torch."""
