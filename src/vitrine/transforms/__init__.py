"""Registered transforms, one file each."""
