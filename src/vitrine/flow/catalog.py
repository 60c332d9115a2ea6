"""What a source can be asked to list: its tables, with keys and cursor candidates."""

from dataclasses import dataclass
from enum import StrEnum


class TableKind(StrEnum):
    TABLE = "table"
    PARTITIONED = "partitioned table"
    VIEW = "view"
    MATERIALIZED = "materialized view"


@dataclass(frozen=True)
class SourceColumn:
    name: str
    type: str
    nullable: bool
    indexed: bool  # an index over all rows begins with it


@dataclass(frozen=True)
class CursorCandidate:
    """A column that may serve as incremental_key, and why."""

    column: str
    type: str
    reasons: tuple[str, ...]
    is_modification: bool  # a time that, by its name, changes with every change of the row


@dataclass(frozen=True)
class SourceTable:
    """A relation that the reader's account may read."""

    schema: str
    name: str
    kind: TableKind
    rows: int | None  # estimate; None: the source has none
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]  # primary key, or a unique key without NULL; empty: neither
    cursors: tuple[CursorCandidate, ...]  # the best first
