"""Writes docs/types.md, how every type is carried in every role and lane: `python -m tests.type_matrix`."""
