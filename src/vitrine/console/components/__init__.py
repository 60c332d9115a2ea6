"""Elements with a script of their own: each is a Python class beside its Vue component."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
