"""Names of the source: for completion in the editor, and as suggestions for keys and cursors."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg

from vitrine.console import suggestions, texts
from vitrine.console.pages.edit_results import Suggestions
from vitrine.console.pages.edit_views import Views
from vitrine.console.suggestions import CursorSuggestion, KeySuggestion
from vitrine.console.viewer import Viewer
from vitrine.errors import VitrineError
from vitrine.model import Mode
from vitrine.service import sources
from vitrine.service.bodies.sources import TableBody
from vitrine.service.context import Context

TABLES_PER_PAGE = 100
MAX_TABLES = 500
"""Each is sent to the browser with its columns, once."""


def first_tables(context: Context, source: str) -> list[TableBody]:
    """The first tables of a source, as the API lists them page by page."""
    found: list[TableBody] = []
    after = ""
    while len(found) < MAX_TABLES:
        page = sources.tables(context, source, after=after, limit=TABLES_PER_PAGE)
        found += page.items
        if page.next is None:
            break
        after = page.next
    return found


class Names:
    """What the inputs offer."""

    def __init__(self, viewer: Viewer, views: Views) -> None:
        self._viewer = viewer
        self._views = views
        self._tables: dict[str, list[TableBody]] = {}
        self._completed: Sequence[TableBody] = ()  # what the editor completes
        self._produced: Sequence[str] = ()

    def build(self) -> None:
        self._suggestions = Suggestions(self._choose)

    async def load(self) -> None:
        """Called when the page is shown already."""
        found = await self._viewer.call(sources.transforms)
        if found is not None:
            self._views.form.offer_transforms([one.name for one in found.items if one.kind != "reader"])
        await self.show(())

    async def show(self, produced: Sequence[str]) -> None:
        """Offer the names of the chosen source. `produced`: columns of the query; empty: not known."""
        if self._views.is_read_only:
            return
        self._produced = produced
        source = str(self._views.form.values["source"])
        if source not in self._tables:
            self._tables[source] = []
            try:
                with suppress(VitrineError):  # the checks report a source that does not respond
                    self._tables[source] = await self._viewer.attempt(first_tables, source)
            except psycopg.Error:  # the store does not respond: the next check asks again
                del self._tables[source]
                return
        tables = self._tables[source]
        if tables is not self._completed:
            self._completed = tables
            self._views.query_help.complete([_for_completion(one) for one in tables])
            if len(tables) >= MAX_TABLES:
                self._viewer.tell(texts.SHOWN_TABLES.format(count=len(tables)))
        self._suggest(tables)

    def _suggest(self, tables: Sequence[TableBody]) -> None:
        values = self._views.form.values
        query = str(values["source_query"])
        self._suggestions.show(
            [
                one
                for one in suggestions.keys(query, tables, self._produced)
                if ", ".join(one.columns) != values["key_columns"]
            ],
            [
                one
                for one in suggestions.cursors(query, tables, self._produced)
                if one.column != values["incremental_key"] or values["mode"] != Mode.INCREMENTAL
            ],
        )

    def _choose(self, suggested: KeySuggestion | CursorSuggestion) -> None:
        if isinstance(suggested, KeySuggestion):
            self._views.form.fill({"key_columns": ", ".join(suggested.columns)})
        else:
            self._choose_cursor(suggested)

    def _choose_cursor(self, cursor: CursorSuggestion) -> None:
        chosen = {"mode": "incremental", "incremental_key": cursor.column, "incremental_id_key": cursor.id_column}
        key = {} if self._views.form.values["key_columns"] else {"key_columns": cursor.id_column}
        self._views.form.fill(chosen | key)


def _for_completion(one: TableBody) -> dict[str, Any]:
    return {
        "schema": one.schema_name,
        "name": one.name,
        "kind": one.kind,
        "columns": [{"name": column.name, "type": column.type} for column in one.columns],
    }
