"""Parts that the cards of one pipeline share."""

from collections.abc import Sequence
from datetime import datetime

from nicegui import ui
from nicegui.element import Element

from vitrine.console import parts
from vitrine.console.components import When


def titled_card(title: str) -> tuple[Element, Element]:
    """A card with a title; the card, and its head, where buttons can be added."""
    with parts.box("v-card", tag="section") as card, parts.box("v-card-head") as head:
        parts.text(title, tag="h3")
    return card, head


def titled(element: Element, title: str) -> Element:
    element.props["title"] = title
    return element


def fact(label: str) -> When:
    parts.text(label, tag="dt")
    with parts.box(tag="dd"):
        return When(None, age=True, missing="–")


def text_fact(label: str) -> ui.label:
    parts.text(label, tag="dt")
    return parts.text("–", tag="dd")


def table_row(cells: Sequence[str], *, tag: str = "td") -> None:
    with parts.box(tag="tr"):
        for cell in cells:
            parts.text(cell, tag=tag)


def iso(at: datetime | None) -> str | None:
    return at.isoformat() if at else None
