"""What the comparisons share: contestants, interleaved rounds, honest statistics, dated result files."""
