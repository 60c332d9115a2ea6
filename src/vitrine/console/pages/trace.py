"""Trace: why one row of a mart is as it is."""

import json
from typing import Any, cast
from urllib.parse import urlencode

import psycopg
from fastapi import Request
from nicegui import background_tasks, ui

from vitrine.console import parts, texts
from vitrine.console.components import Column, Table
from vitrine.console.pages.overview import address_of
from vitrine.console.viewer import HOME, NAVIGATION, Console, Entry, Viewer
from vitrine.core import keys
from vitrine.errors import VitrineError
from vitrine.operations import checks, control, definitions
from vitrine.operations.bodies.checks import MAX_KEY_COLUMNS, MAX_KEY_LENGTH, ResendBody, Shown, TraceBody
from vitrine.operations.bodies.filters import Filters
from vitrine.operations.context import Role

PATH = "/trace"
MAX_NAME = 100
SUGGESTED = 20
NO_VALUE = "–"
"""Shown where a side has no such row or column; NULL is a value."""

TONES = {
    "equal": "success",
    "waiting": "waiting",
    "blocked": "paused",
    "quarantined": "failed",
    "transform_fails": "failed",
    "filtered": "idle",
    "not_found": "idle",
}


def register(console: Console) -> None:
    NAVIGATION.append(Entry(texts.TRACE, PATH, Role.OPERATOR))

    @console.page(PATH, title=texts.TRACE, role=Role.OPERATOR)
    async def show(viewer: Viewer, request: Request) -> None:
        pipeline = request.query_params.get("pipeline", "").replace("\0", "")[:MAX_NAME]
        key = [one.replace("\0", "")[:MAX_KEY_LENGTH] for one in request.query_params.getlist("key")]
        await TracePage(viewer, pipeline, key[:MAX_KEY_COLUMNS]).build()


class TracePage:
    def __init__(self, viewer: Viewer, pipeline: str, key: list[str]) -> None:
        self._viewer = viewer
        self._given = (pipeline, key)
        self._asked = 0

    async def build(self) -> None:
        pipeline, key = self._given
        with parts.box("v-card v-pad v-trace-form", tag="section"):
            parts.text(texts.TRACE_TITLE, tag="h2")
            parts.text(texts.TRACE_HELP, "v-muted", tag="p")
            with parts.box("v-toolbar"):
                self._pipeline = ui.input(placeholder=texts.PIPELINE, value=pipeline).classes("v-field")
                self._pipeline.props('dense outlined debounce="200"').props["aria-label"] = texts.PIPELINE
                self._pipeline.on_value_change(self._suggest)
                self._key = ui.input(placeholder=texts.TRACE_KEY, value="\t".join(key)).classes("v-field v-key")
                self._key.props("dense outlined").props["aria-label"] = texts.TRACE_KEY
                for field in (self._pipeline, self._key):
                    # not keydown: what was typed last, and is sent after a pause, is sent before it
                    field.on("keyup.enter", self._trace, [])
                parts.button(texts.TRACE_ROW, self._trace, primary=True)
            self._problem = parts.text("", "v-problem", tag="p")
            self._problem.props["role"] = "alert"
        self._result = parts.box("v-trace")
        self._result.props["aria-live"] = "polite"
        await self._suggest()
        if pipeline and key:
            # a slow source must not delay the page
            cast(Any, background_tasks).create(self._trace(), name="trace of an address")

    async def _suggest(self, _event: Any = None) -> None:
        text = (self._pipeline.value or "").strip()[:MAX_NAME]
        page = await self._viewer.call(definitions.list_page, Filters(search=text or None), limit=SUGGESTED)
        if page is not None:
            self._pipeline.set_autocomplete(page.names)

    async def _trace(self) -> None:
        name = (self._pipeline.value or "").strip().replace("\0", "")[:MAX_NAME]
        key = [one.strip() for one in (self._key.value or "").replace("\0", "").split("\t") if one.strip()]
        parts.set_text(self._problem, "")
        if not name or not key:
            parts.set_text(self._problem, texts.TRACE_MISSING)
            return
        query = urlencode([("pipeline", name), *(("key", one) for one in key)])
        self._viewer.client.run_javascript(f"history.replaceState(null, '', {json.dumps(f'{HOME}{PATH}?{query}')})")
        self._asked += 1
        asked, problem, found = self._asked, "", None
        self._result.clear()
        with self._result:
            parts.text(texts.TRACING, "v-muted", tag="p")
        try:
            found = await self._viewer.attempt(checks.trace, name, key)
        except VitrineError as exc:
            problem = str(exc)
        except psycopg.OperationalError:
            problem = texts.STORE_UNAVAILABLE
        if asked != self._asked:
            return  # another row was asked for meanwhile
        self._result.clear()
        parts.set_text(self._problem, problem)
        if found is not None:
            with self._result:
                self._show(found)

    def _show(self, found: TraceBody) -> None:
        with parts.box("v-card", tag="section"):
            with parts.box("v-card-head"):
                parts.badge(texts.STANDINGS.get(found.standing, found.standing), TONES.get(found.standing, "late"))
                parts.text(f"{found.pipeline}: {keys.shown_key(found.key)}", tag="h2")
                parts.text("", "v-grow")
                parts.link(texts.OPEN_PIPELINE, address_of(found.pipeline), "v-button")
                if found.standing != "equal":
                    parts.button(texts.RESEND, lambda: self._resend(found))
            with parts.box("v-pad v-trace-why"):
                parts.text(_sentence(found.sentence), "v-verdict", tag="p")
                if found.remedy:
                    parts.prose(f"{texts.REMEDY}: {found.remedy}")
                if found.waiting and found.standing != "blocked":
                    parts.prose(f"{texts.PIPELINE}: {found.waiting}", "v-muted")
                if found.reject is not None and found.reject.reason not in found.sentence:
                    parts.text(found.reject.reason, "v-muted", tag="p")
                if found.cursor and found.checkpoint:
                    row = " / ".join("NULL" if text is None else text for text in found.cursor)
                    shown = texts.CURSOR_AND_CHECKPOINT.format(cursor=row, checkpoint=" / ".join(found.checkpoint))
                    parts.text(shown, "v-muted", tag="p")
                if found.not_compared:
                    parts.text(texts.COMPARED_BY_TEXTS.format(reason=found.not_compared), "v-muted", tag="p")
        if found.columns:
            with parts.box("v-card v-scroll", tag="section"):
                self._columns(found)
        for title, rows in _sides(found):
            if len(rows) > 1:
                parts.text(texts.SEVERAL_ROWS.format(side=title, count=len(rows)), "v-muted", tag="p")
        for step in found.steps:
            if step.error:
                parts.text(f"{step.transform}: {step.error}", "v-problem", tag="p")

    def _columns(self, found: TraceBody) -> None:
        sides = _sides(found)
        columns = [
            Column("name", texts.COLUMN),
            *(Column(f"side{n}", title, "code") for n, (title, _) in enumerate(sides)),
        ]
        table = Table(texts.TRACE_CAPTION, columns)
        last = f"side{len(sides) - 1}"
        table.show(
            [
                {
                    "key": column.name,
                    "name": column.name,
                    "differs": texts.DIFFERS if column.differs else "",
                    "tones": {last: "failed"} if column.differs else {},
                    **{f"side{n}": _cell(rows, column.name) for n, (_, rows) in enumerate(sides)},
                }
                for column in found.columns
            ]
        )

    async def _resend(self, found: TraceBody) -> None:
        title = texts.RESEND_TITLE.format(key=keys.shown_key(found.key), pipeline=found.pipeline)
        if await parts.confirm(title, texts.RESEND_EXPLAINED.format(target=found.target), texts.RESEND):
            await self._viewer.act(texts.RESENT, control.resend, found.pipeline, ResendBody(key=found.key))


def _sides(found: TraceBody) -> list[tuple[str, list[Shown]]]:
    return [
        (texts.SOURCE, found.source),
        *((step.transform, step.rows) for step in found.steps),
        (found.target, found.target_rows),
    ]


def _cell(rows: list[Shown], column: str) -> str:
    if not rows or column not in rows[0]:
        return NO_VALUE
    text = rows[0][column]
    return "NULL" if text is None else text


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
