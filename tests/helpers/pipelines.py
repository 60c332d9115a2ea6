"""Stores pipelines without asking their source."""

from typing import Any

from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.store import pipelines


def create(connection: Connection, name: str, **fields: Any) -> Pipeline:
    """A pipeline that reads genres into a mart of its own name, unless the fields say otherwise."""
    definition = {
        "name": name,
        "source_query": "SELECT id, name FROM content.genre",
        "target_table": f"analytics.{name}",
        "key_columns": ["id"],
    }
    return pipelines.create(connection, Definition.model_validate(definition | fields))
