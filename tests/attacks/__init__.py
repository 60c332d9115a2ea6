"""The attack set, and honest queries that must keep working."""
