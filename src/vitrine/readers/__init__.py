"""Registered Python readers, one file each: rows from anywhere but a database."""
