"""Elements of the page that edits a definition: help for the SQL editor, and a table of values."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui.element import Element

Mark = Mapping[str, Any]


class EditorHelp(Element, component="editor_help.js"):
    """Adds completion, marks and the theme to a CodeMirror element, and keeps what was typed over a reload.

    `on_kept` gets what an earlier page at this address kept.
    """

    def __init__(self, editor: Element, *, label: str, key: str, on_kept: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self._props["editor"] = editor.id
        self._props["label"] = label
        self._props["storage"] = key
        if on_kept is not None:
            self.on("kept", lambda event: on_kept(event.args))

    def complete(self, tables: Sequence[Mapping[str, Any]]) -> None:
        """Offer these: `schema`, `name`, and `columns` with `name` and `type`."""
        self.run_method("complete", list(tables))

    def mark_places(self, marks: Sequence[Mark]) -> None:
        """Mark these places: `line`, `column`, `text` and `level`."""
        self.run_method("markPlaces", list(marks))

    def keep(self, typed: object) -> None:
        """Remember this in the tab until `forget`."""
        self.run_method("keep", typed)

    def forget(self) -> None:
        self.run_method("forget")

    def go_to(self, line: int, column: int) -> None:
        self.run_method("goTo", line, column)


class Grid(Element, component="grid.js"):
    """Rows of values under columns with their types; every value is shown as text."""

    def __init__(self, caption: str) -> None:
        super().__init__()
        self._props["caption"] = caption
        self._props["columns"] = []
        self._props["rows"] = []

    def show(self, columns: Sequence[Mapping[str, str]], rows: Sequence[Sequence[Any]]) -> None:
        self._props["columns"] = list(columns)
        self._props["rows"] = [list(row) for row in rows]
        self.update()
