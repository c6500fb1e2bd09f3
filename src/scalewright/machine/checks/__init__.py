"""The examinations of `doctor`, a file for each part of a machine; they find, and change nothing."""
