"""Registered Python readers, one file each: rows from sources that are not databases."""
