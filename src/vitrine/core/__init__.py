"""What moves rows: the loop, its values and its interfaces; no I/O and no driver."""
