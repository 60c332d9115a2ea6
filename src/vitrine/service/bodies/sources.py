"""Bodies about sources and registered Python tasks."""

from typing import Any, Self

from pydantic import BaseModel, Field

from vitrine.flow.catalog import TableKind
from vitrine.registry import Kind, Task, describe_options
from vitrine.service.bodies.examples import example
from vitrine.service.bodies.mirror import Mirror

TABLE_EXAMPLE: dict[str, Any] = {
    "schema": "content",
    "name": "film_work",
    "kind": "table",
    "rows": 1000,
    "columns": [
        {"name": "id", "type": "uuid", "nullable": False, "indexed": True},
        {"name": "title", "type": "text", "nullable": False, "indexed": False},
        {"name": "modified", "type": "timestamp with time zone", "nullable": False, "indexed": True},
    ],
    "key": ["id"],
    "cursors": [
        {
            "column": "modified",
            "type": "timestamp with time zone",
            "is_modification": True,
            "reasons": ["named like the time of a change", "indexed"],
        }
    ],
}


class TableColumnBody(Mirror):
    name: str
    type: str
    nullable: bool
    indexed: bool = Field(description="An index over all rows begins with it.")


class CursorBody(Mirror):
    """A column that may serve as incremental_key."""

    column: str
    type: str
    is_modification: bool = Field(description="By its name, a time that changes with every change of the row.")
    reasons: list[str] = Field(description="What speaks for it and against it.")


class TableBody(Mirror):
    """A table or view that pipelines may read."""

    model_config = example(TABLE_EXAMPLE)

    # `schema` is the name of a deprecated method of BaseModel
    schema_name: str = Field(alias="schema")
    name: str
    kind: TableKind
    rows: int | None = Field(description="Estimate of the source; null where it has none, as for views.")
    columns: list[TableColumnBody]
    key: list[str] = Field(description="Primary key, or a unique key without NULL; empty: neither.")
    cursors: list[CursorBody] = Field(description="Columns that may serve as incremental_key, the best first.")

    @property
    def full_name(self) -> str:
        return f"{self.schema_name}.{self.name}"


class TablePage(BaseModel):
    model_config = example({"source": "default", "items": [TABLE_EXAMPLE], "next": None})

    source: str
    items: list[TableBody]
    next: str | None = Field(description="Give it as `after` for the next page; null on the last page.")


TRANSFORM_EXAMPLE: dict[str, Any] = {
    "name": "rating_trend",
    "kind": "frame",
    "summary": "Adds the trend of each film.",
    "options": ["threshold: float = 0.5"],
    "origin": "vitrine",
}


class TransformBody(BaseModel):
    """A registered Python task."""

    model_config = example(TRANSFORM_EXAMPLE)

    name: str
    kind: Kind
    summary: str = Field(description="The first line of its documentation.")
    options: list[str] = Field(description="`name: type = default` of each option.")
    origin: str = Field(description="The distribution that contains it, or its module if there is none.")

    @classmethod
    def of(cls, task: Task) -> Self:
        return cls(
            name=task.name, kind=task.kind, summary=task.summary, options=describe_options(task), origin=task.origin
        )


class TransformList(BaseModel):
    model_config = example({"items": [TRANSFORM_EXAMPLE]})

    items: list[TransformBody]
