"""Does this layout compute what one device computes? `compare.parity` is the door."""
