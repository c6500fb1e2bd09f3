"""The examinations of `doctor`, a file for each part of a machine; they return findings and change nothing."""
