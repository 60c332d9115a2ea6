"""Every registered source and sink, and one pair from outside."""
