"""Elements with a script of their own: each is a Python class beside its Vue component."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nicegui.element import Element

Row = Mapping[str, Any]


class When(Element, component="when.js"):
    """A moment in the zone of the viewer, with UTC on hover; `age`: how long ago it was, or is to come."""

    def __init__(self, at: str | None, *, age: bool = False, missing: str = "–") -> None:
        super().__init__()
        self._props["at"] = at
        self._props["age"] = age
        self._props["missing"] = missing

    def set(self, at: str | None, *, missing: str = "–") -> None:
        if (self._props["at"], self._props["missing"]) != (at, missing):
            self._props["at"] = at
            self._props["missing"] = missing
            self.update()


class Sentence(Element, component="sentence.js"):
    """A sentence of the server, its times in the zone of the viewer; nothing without one."""

    def __init__(self) -> None:
        super().__init__()
        self._props["text"] = ""

    def show(self, text: str) -> None:
        if self._props["text"] != text:
            self._props["text"] = text
            self.update()


class Age(Element, component="age.js"):
    """How old the page is, and the name of the viewer's zone. `every`: seconds between two messages to the browser."""

    def __init__(self, *, updated: str, zone: str, every: float) -> None:
        super().__init__()
        self._every = every
        self._sent = -1e9
        self._props["updated"] = updated
        self._props["zone"] = zone

    def tick(self, read_at: float | None) -> None:
        if read_at is not None and read_at - self._sent >= self._every:
            self._sent = read_at
            self.run_method("tick")


class Rows(Element):
    """A component with `rows` that have a `key`; only rows that have changed are sent again."""

    def __init__(self, texts: Mapping[str, str], *, key: str) -> None:
        super().__init__()
        self._key = key
        self._rows: list[Row] = []
        self._props["texts"] = dict(texts)
        self._props["rows"] = ()

    def show(self, rows: Sequence[Row]) -> None:
        before, self._rows = self._rows, list(rows)
        # for a browser that builds the page again; a change of the props would send all rows now
        with self._props.suspend_updates():
            # NiceGUI would watch every value in a list, which takes longer than to read the rows
            self._props["rows"] = tuple(rows)
        if [one[self._key] for one in before] != [one[self._key] for one in rows]:
            self.update()
            return
        changed = [new for old, new in zip(before, rows, strict=True) if old != new]
        if changed:
            self.run_method("patch", changed)


class Marts(Rows, component="marts.js"):
    """The table of pipelines and their marts. `outcomes`: text and tone of each status; runs name its number."""

    def __init__(self, texts: Mapping[str, str], outcomes: Sequence[Mapping[str, str]]) -> None:
        super().__init__(texts, key="name")
        self._props["outcomes"] = tuple(outcomes)


class Timeline(Rows, component="timeline.js"):
    """Runs and changes, newest first; `on_log` gets the number of the run whose log is wanted."""

    def __init__(self, texts: Mapping[str, str], on_log: Callable[[int], Any]) -> None:
        super().__init__(texts, key="key")
        self.on("log", lambda event: on_log(int(event.args)))


class Chart(Element, component="chart.js"):
    """One bar for each run. `unit`: seconds or rows."""

    def __init__(self, title: str, *, unit: str, empty: str) -> None:
        super().__init__()
        self._props["title"] = title
        self._props["unit"] = unit
        self._props["empty"] = empty
        self._props["points"] = []
        self._props["limit"] = None
        self._props["limitText"] = ""

    def show(self, points: Sequence[Row], *, limit: float | None = None, limit_text: str = "") -> None:
        shown = {"points": list(points), "limit": limit, "limitText": limit_text}
        if {name: self._props[name] for name in shown} != shown:
            for name, value in shown.items():
                self._props[name] = value
            self.update()


class Sql(Element, component="sql.js"):
    """A query with its words in colour."""

    def __init__(self, query: str) -> None:
        super().__init__()
        self._props["query"] = query


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


class Strip(Element):
    """Figures beside each other; `entries`: the name of the property that holds them."""

    def __init__(self, label: str, entries: str) -> None:
        super().__init__()
        self._entries = entries
        self._props["label"] = label
        self._props[entries] = ()

    def show(self, entries: Sequence[Row]) -> None:
        self._set(self._entries, tuple(entries))  # not a list: NiceGUI would watch every value in it

    def _set(self, name: str, value: object) -> None:
        if self._props[name] != value:
            self._props[name] = value
            self.update()


class Counters(Strip, component="counters.js"):
    """Buttons with a `figure`; `on_choose` gets the `state` of the one that is clicked."""

    def __init__(self, label: str, on_choose: Callable[[str], Any]) -> None:
        super().__init__(label, "counters")
        self._props["chosen"] = ""
        self.on("choose", lambda event: on_choose(str(event.args)))

    def choose(self, state: str) -> None:
        self._set("chosen", state)


class Groups(Strip, component="groups.js"):
    """Buttons with a `name`; `on_choose` gets the one that is clicked. A click is not lost while figures change."""

    def __init__(self, label: str, on_choose: Callable[[str], Any]) -> None:
        super().__init__(label, "groups")
        self.on("choose", lambda event: on_choose(str(event.args)))


class Health(Strip, component="health.js"):
    """Values with a `label` and a `detail`; a problem is coloured."""

    def __init__(self, label: str) -> None:
        super().__init__(label, "items")


class Lineage(Element, component="lineage.js"):
    """Nodes in columns, with arrows; `on_choose` gets the id of a node that is clicked."""

    def __init__(self, texts: Mapping[str, str], on_choose: Callable[[str], Any]) -> None:
        super().__init__()
        self._props["texts"] = dict(texts)
        self._props |= {"nodes": (), "edges": (), "columns": ()}
        self.on("choose", lambda event: on_choose(str(event.args)))

    def show(self, nodes: Sequence[Row], edges: Sequence[Row], columns: Sequence[Row]) -> None:
        # not lists: NiceGUI would watch every value in them
        shown = {"nodes": tuple(nodes), "edges": tuple(edges), "columns": tuple(columns)}
        if {name: self._props[name] for name in shown} != shown:
            self._props |= shown
            self.update()


class Paths(Rows, component="paths.js"):
    """Pipelines with what they read and write."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__(texts, key="name")


@dataclass(frozen=True)
class Column:
    """`kind`: how the value of a row is shown; `sub`: the name of a value that stands below it."""

    name: str
    text: str
    kind: Literal["text", "link", "badge", "age", "clock", "number", "code", "details", "button"] = "text"
    sub: str = ""


class Table(Rows, component="table.js"):
    """Rows with a `key`; `on_act` gets the key of a row whose button is clicked."""

    def __init__(self, caption: str, columns: Sequence[Column], on_act: Callable[[str], Any] | None = None) -> None:
        super().__init__({}, key="key")
        self._props["caption"] = caption
        self._props["columns"] = [asdict(column) for column in columns]
        if on_act is not None:
            self.on("act", lambda event: on_act(str(event.args)))
