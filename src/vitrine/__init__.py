"""Vitrine: configuration-driven ETL for analytical marts."""
