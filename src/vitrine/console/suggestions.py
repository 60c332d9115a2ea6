"""Keys and cursors that the tables of a query suggest."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vitrine.service.bodies.sources import TableBody

MAX_SUGGESTIONS = 4


@dataclass(frozen=True)
class KeySuggestion:
    columns: tuple[str, ...]
    table: str


@dataclass(frozen=True)
class CursorSuggestion:
    column: str
    id_column: str  # breaks ties
    table: str
    reasons: tuple[str, ...]


def tables_of(query: str, tables: Sequence[TableBody]) -> list[TableBody]:
    """The tables that the text names; a suggestion need not be exact, so that unfinished queries have some, too."""
    text = re.sub(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", " ", query, flags=re.DOTALL).replace('"', "")
    named = {(found[1].lower(), found[2].lower()) for found in re.finditer(r"\b(\w+)\s*\.\s*(\w+)\b", text)}
    return [one for one in tables if (one.schema_name.lower(), one.name.lower()) in named]


def keys(query: str, tables: Sequence[TableBody], produced: Collection[str] = ()) -> list[KeySuggestion]:
    """Keys of the tables that the query names and whose columns it returns."""
    found: dict[tuple[str, ...], KeySuggestion] = {}
    for one in tables_of(query, tables):
        if one.key and all(_returns(query, column, produced) for column in one.key):
            found.setdefault(tuple(one.key), KeySuggestion(tuple(one.key), one.full_name))
    return list(found.values())[:MAX_SUGGESTIONS]


def cursors(query: str, tables: Sequence[TableBody], produced: Collection[str] = ()) -> list[CursorSuggestion]:
    """Columns that grow with every change, of tables with a key of one column."""
    found: dict[tuple[str, str], CursorSuggestion] = {}
    for one in tables_of(query, tables):
        if len(one.key) != 1 or not _returns(query, one.key[0], produced):
            continue
        for cursor in one.cursors:
            if cursor.is_modification and _returns(query, cursor.column, produced):
                made = CursorSuggestion(cursor.column, one.key[0], one.full_name, tuple(cursor.reasons))
                found.setdefault((made.column, made.id_column), made)
    return list(found.values())[:MAX_SUGGESTIONS]


def _returns(query: str, column: str, produced: Collection[str]) -> bool:
    if produced:
        return column in produced
    return "*" in query or re.search(rf"\b{re.escape(column)}\b", query) is not None
