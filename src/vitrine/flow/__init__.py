"""The loop that moves rows, and the interfaces of the parts it needs."""
