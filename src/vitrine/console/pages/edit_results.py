"""What the page that edits a definition shows beside the inputs: findings, suggestions, preview, refusals."""

from collections.abc import Callable, Sequence
from typing import Any

from nicegui.element import Element

from vitrine.console import parts, texts
from vitrine.console.components import Grid
from vitrine.console.drafts import CursorSuggestion, KeySuggestion, Problem
from vitrine.operations.bodies.checks import PreviewBody, ReportBody


class Findings:
    """The state of the checks in one line, and every reason below it."""

    def __init__(self, go_to: Callable[[int, int], Any]) -> None:
        self._go_to = go_to
        with parts.box("v-findings") as area:
            area.props["aria-live"] = "polite"
            self._summary = parts.text(texts.NOT_CHECKED_YET, "v-muted", tag="p")
            self._list = parts.box("v-finding-list", tag="ul")
        self._shown: Sequence[Problem] = ()

    def checking(self) -> None:
        parts.set_text(self._summary, texts.CHECKING)

    def show(self, problems: Sequence[Problem], report: ReportBody | None) -> None:
        parts.set_text(self._summary, _summary(report) if report else "")
        self._summary.set_visibility(report is not None)
        if problems == self._shown:
            return
        self._shown = problems
        self._list.clear()
        with self._list:
            for one in problems:
                self._item(one)

    def _item(self, one: Problem) -> None:
        with parts.box("v-finding", tag="li") as item:
            item.props["data-level"] = one.level
            parts.badge(texts.LEVELS[one.level], texts.LEVEL_TONES[one.level])
            if one.line is not None and one.column is not None:
                line, column = one.line, one.column
                place = parts.button(
                    texts.AT_PLACE.format(line=line, column=column),
                    lambda: self._go_to(line, column),
                    name=texts.GO_TO_PLACE.format(line=line, column=column),
                )
                place.classes("v-place")
            parts.text(one.text, "v-finding-text")


def _summary(report: ReportBody) -> str:
    expected = report.rows_expected
    rows = texts.READY_ROWS_UNKNOWN if expected is None else texts.READY_ROWS.format(rows=f"{expected:,}")
    ready = texts.READY.format(columns=len(report.columns), key=", ".join(report.key) or texts.NO_KEY, rows=rows)
    return ready if report.target_exists else f"{ready}; {texts.TARGET_NEW}"


class Suggestions:
    """Keys and cursors to choose with a click."""

    def __init__(self, choose: Callable[[KeySuggestion | CursorSuggestion], Any]) -> None:
        self._choose = choose
        with parts.box("v-suggestions v-row") as self._box:
            self._box.props["aria-label"] = texts.SUGGESTIONS
            self._box.props["role"] = "group"
            parts.text(texts.SUGGESTIONS, "v-muted")
        self._box.set_visibility(False)
        self._chips: dict[KeySuggestion | CursorSuggestion, Element] = {}

    def show(self, keys: Sequence[KeySuggestion], cursors: Sequence[CursorSuggestion]) -> None:
        offered = (*keys, *cursors)
        self._box.set_visibility(bool(offered))
        for one in [known for known in self._chips if known not in offered]:
            self._chips.pop(one).delete()
        with self._box:
            # those that stay are not made again: a click on one that is replaced meanwhile would be lost
            for one in offered:
                if one not in self._chips:
                    self._chips[one] = self._make(one)

    def _make(self, one: KeySuggestion | CursorSuggestion) -> Element:
        if isinstance(one, KeySuggestion):
            label = texts.SUGGEST_KEY.format(columns=", ".join(one.columns))
            title = texts.SUGGEST_KEY_HELP.format(table=one.table)
        else:
            label = texts.SUGGEST_CURSOR.format(column=one.column)
            reasons = ", ".join(one.reasons)
            title = texts.SUGGEST_CURSOR_HELP.format(table=one.table, reasons=reasons, tie=one.id_column)
        chip = parts.button(label, _call(self._choose, one)).classes("v-chip")
        chip.props["title"] = title
        return chip


def _call(function: Callable[[Any], Any], argument: object) -> Callable[[], Any]:
    return lambda: function(argument)


class PreviewCard:
    def __init__(self) -> None:
        with parts.box("v-card", tag="section") as self._card:
            self._card.props["aria-label"] = texts.PREVIEW
            with parts.box("v-card-head"):
                parts.text(texts.PREVIEW, tag="h2")
                self._facts = parts.text("", "v-muted")
            self._problem = parts.text("", "v-pad v-problem", tag="p")
            self._grid = Grid(texts.PREVIEW_CAPTION)
        self._card.set_visibility(False)

    def checking(self) -> None:
        self._card.set_visibility(True)
        parts.set_text(self._facts, texts.CHECKING)

    def show(self, preview: PreviewBody) -> None:
        facts = [texts.PREVIEW_ROWS.format(rows=len(preview.rows))]
        if preview.rows_read != len(preview.rows):
            facts.append(texts.PREVIEW_READ.format(read=preview.rows_read))
        if preview.cut is not None:
            facts.append(texts.PREVIEW_CUT[preview.cut])
        if not preview.rows:
            facts = [texts.PREVIEW_EMPTY]
        parts.set_text(self._facts, "; ".join(facts))
        self._problem.set_visibility(False)
        self._grid.show([{"name": one.name, "type": one.type} for one in preview.columns], preview.rows)
        self._grid.set_visibility(bool(preview.columns))

    def refuse(self, reasons: Sequence[str]) -> None:
        parts.set_text(self._facts, "")
        parts.set_text(self._problem, " · ".join(reasons))
        self._problem.set_visibility(True)
        self._grid.set_visibility(False)
