"""Compares a mart with its source: by digests, key by key, or for one row."""
