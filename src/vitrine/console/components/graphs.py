"""The components of the lineage."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui.element import Element

from vitrine.console.components import Row, Rows


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
