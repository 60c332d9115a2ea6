"""Interprets definitions: plans, validation, reconciliation."""
