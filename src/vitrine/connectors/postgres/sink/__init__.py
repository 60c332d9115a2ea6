"""Rows into a PostgreSQL mart: what differs is written, what is equal is neither written nor locked."""
