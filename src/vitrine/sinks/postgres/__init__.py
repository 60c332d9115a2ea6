"""Rows into a Postgres mart: what changed is written, what did not is neither written nor locked."""

from vitrine.sinks.postgres.writer import FullLoad, PostgresUnit, PostgresWriter

__all__ = ["FullLoad", "PostgresUnit", "PostgresWriter"]
