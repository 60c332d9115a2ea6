"""The figures above the table of the overview. Each strip is one element: a page is built faster with few of them."""

from collections.abc import Callable, Sequence
from typing import Any

from nicegui.element import Element

from vitrine.console.components import Row


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
