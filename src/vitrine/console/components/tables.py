"""A table of any columns."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vitrine.console.components import Rows


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
