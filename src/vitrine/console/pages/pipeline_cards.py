"""The cards of one pipeline: what it does now, what happened to it, what is known about its rows."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from nicegui import ui
from nicegui.element import Element

from vitrine.console import parts, texts
from vitrine.console.components import Chart, Timeline, When
from vitrine.console.viewer import Viewer
from vitrine.core.status import Status
from vitrine.operations import control, history
from vitrine.operations.bodies.checks import RejectPage
from vitrine.operations.bodies.overview import RecentRunBody, TimelineEntry, TimelinePage
from vitrine.operations.bodies.pipelines import KeysBody, PipelineBody, ReconcileBody, StoredReportBody
from vitrine.operations.bodies.runs import RunLogBody, StateBody, StatusBody
from vitrine.operations.context import Role


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


class ProgressCard:
    """The run under way."""

    def __init__(self) -> None:
        with parts.box("v-card v-pad v-progress", tag="section") as self._card:
            self._card.props["aria-label"] = texts.PROGRESS
            with parts.box("v-row"):
                self._title = parts.text(texts.PROGRESS, tag="strong")
                self._percent = parts.text("", "v-value")
                parts.box("v-grow")
                self._runner = parts.text("", "v-muted")
            with parts.box("v-bar") as self._bar:
                self._fill = parts.box("v-fill")
            self._bar.props["role"] = "progressbar"
            self._bar.props["aria-label"] = texts.PROGRESS
            self._facts = parts.text("", "v-muted", tag="p")
        self._card.set_visibility(False)

    def show(self, status: StatusBody) -> None:
        progress, run = status.progress, status.last_run
        if self._card.visible != (progress is not None):
            self._card.set_visibility(progress is not None)
        if progress is None or run is None:
            return
        percent = progress.percent
        parts.set_text(self._title, texts.KINDS.get(run.kind, run.kind))
        parts.set_text(self._percent, f"{percent:.0f} %" if percent is not None else "")
        parts.set_text(self._runner, texts.ON_RUNNER.format(runner=run.runner))
        parts.set_attribute(self._bar, "aria-valuenow", f"{percent or 0:.0f}")
        parts.set_attribute(self._fill, "style", f"width: {percent:.1f}%" if percent is not None else "width: 100%")
        parts.set_attribute(self._fill, "data-unknown", "true" if percent is None else "false")
        rows = f"{progress.rows_read:,}"
        facts = [
            texts.PROGRESS_ROWS.format(read=rows, expected=f"{progress.rows_expected:,}")
            if progress.rows_expected
            else texts.PROGRESS_ROWS_UNKNOWN.format(read=rows),
            texts.BATCHES.format(count=run.batches),
        ]
        if progress.rows_per_second:
            facts.append(texts.RATE.format(rate=f"{progress.rows_per_second:,.0f}"))
        if progress.seconds_left is not None:
            facts.append(texts.TIME_LEFT.format(left=parts.duration(progress.seconds_left)))
        parts.set_text(self._facts, " · ".join(facts))


class ErrorCard:
    """Why the last run failed: the sentence with its remedy, the side it comes from, and a button to copy it."""

    def __init__(self) -> None:
        self._shown: object = None
        self._box = parts.box()

    def show(self, status: StatusBody) -> None:
        error = status.last_error
        if error == self._shown:
            return
        self._shown = error
        self._box.clear()
        if error is None:
            return
        with self._box, parts.box("v-card v-pad v-error", tag="section") as card:
            card.props["aria-label"] = texts.ERROR
            with parts.box("v-row"):
                parts.text(texts.ERROR, tag="strong")
                parts.badge(parts.origin_of(error.code, error.message), "failed")
                parts.text(error.code, "v-mono v-muted")
                parts.when(error.at, age=True).classes("v-muted")
            with parts.box("v-code-box"):
                parts.text(error.message, "v-error-text", tag="p")
                parts.copy_button(f"{status.pipeline}: {error.code}: {error.message}")
            if status.status is Status.FAILED:
                parts.text(texts.ERROR_REMEDY, "v-muted", tag="p")


class CheckpointCard:
    def __init__(self) -> None:
        card, _ = titled_card(texts.CHECKPOINT)
        with card:
            self._box = parts.box("v-pad")
        self._shown: StateBody | None = None

    def show(self, state: StateBody) -> None:
        if state == self._shown:
            return
        self._shown = state
        self._box.clear()
        with self._box:
            if state.cursor is None and not state.generation:
                parts.text(texts.NO_CHECKPOINT, "v-muted", tag="p")
                return
            with parts.box("v-facts v-narrow", tag="dl"):
                if state.cursor:
                    text_fact(texts.CURSOR).set_text(", ".join(state.cursor))
                if state.generation:
                    generation = str(state.generation)
                    if state.generation_open:
                        rows = f"{state.generation_rows:,}"
                        generation = texts.GENERATION_OPEN.format(generation=generation, rows=rows)
                    text_fact(texts.GENERATION).set_text(generation)
                text_fact(texts.BATCH_SEQ).set_text(f"{state.batch_seq:,}")
                if state.horizon_blocker:
                    text_fact(texts.HELD_BACK).set_text(state.horizon_blocker)
                fact(texts.SAVED_AT).set(iso(state.updated_at))


SHOWN_EVENTS = 15
"""As many as stand beside the other cards without much empty space."""


class Charts:
    """Of the last runs; the ages of the mart beside its promise."""

    def __init__(self) -> None:
        self._limit: tuple[float, str] | None = None
        self._ages: Sequence[dict[str, Any]] = ()
        with parts.box("v-charts"):
            self._duration = Chart(texts.CHART_DURATION, unit="seconds", empty=texts.NO_RUNS)
            self._rows = Chart(texts.CHART_ROWS, unit="rows", empty=texts.NO_RUNS)
            self._freshness = Chart(texts.CHART_FRESHNESS, unit="seconds", empty=texts.NO_AGES)

    def show(self, runs: Sequence[RecentRunBody]) -> None:
        self._duration.show([_point(run, round(run.seconds, 3)) for run in runs])
        # a mart would look empty after it was only compared
        self._rows.show([_point(run, run.rows_read) for run in runs if run.kind not in ("reconcile", "rollback")])
        self._ages = ages_before_updates(runs)
        self._show_ages()

    def promise(self, limit: tuple[float, str] | None) -> None:
        """How old the mart may be, in seconds, and as a legend; None: nothing is promised."""
        self._limit = limit
        self._show_ages()

    def _show_ages(self) -> None:
        seconds, text = self._limit or (None, "")
        self._freshness.show(self._ages, limit=seconds, limit_text=text)


def ages_before_updates(runs: Sequence[RecentRunBody]) -> list[dict[str, Any]]:
    """How old the mart had become when each success replaced it: from the start of the success before it."""
    found: list[dict[str, Any]] = []
    before: RecentRunBody | None = None
    for run in runs:
        if run.status != "SUCCESS" or run.kind not in ("full", "incremental"):
            continue
        if before is not None:
            found.append(_point(run, round((run.started_at - before.started_at).total_seconds() + run.seconds, 3)))
        before = run
    return found


def _point(run: RecentRunBody, value: float) -> dict[str, Any]:
    return {"at": run.started_at.isoformat(), "value": value, "tone": parts.tone_of(run.status)}


class EventsCard:
    """Runs and changes in one order."""

    def __init__(self, viewer: Viewer, name: str) -> None:
        self._viewer = viewer
        self._name = name
        self._older: list[TimelineEntry] = []
        self._newest: TimelinePage | None = None
        self._after: TimelinePage | None = None
        self.log: LogCard | None = None
        card, _ = titled_card(texts.TIMELINE)
        with card:
            self._empty = parts.text(texts.NO_EVENTS, "v-muted v-pad", tag="p")
            self._empty.set_visibility(False)  # not known yet
            self._list = Timeline(texts.TIMELINE_TEXTS, self._open_log)
            with parts.box("v-row v-pad v-end") as self._more:
                parts.button(texts.OLDER, self._load_older)

    def show(self, page: TimelinePage) -> None:
        if self._newest is not None and self._older:
            # entries that left the first page stay between it and the older ones
            known = {_key(one) for one in page.items} | {_key(one) for one in self._older}
            self._older = [one for one in self._newest.items if _key(one) not in known] + self._older
        self._newest = page
        self._after = self._after or page
        self._show()

    async def _load_older(self) -> None:
        last = self._after or self._newest
        if last is None or (last.next_run is None and last.next_change is None):
            return
        page = await self._viewer.call(
            history.list_timeline,
            self._name,
            before_run=last.next_run or 1,
            before_change=last.next_change or 1,
            limit=SHOWN_EVENTS,
        )
        if page is not None:
            known = {_key(one) for one in (self._newest.items if self._newest else [])}
            self._older += [one for one in page.items if _key(one) not in known]
            self._after = page
            self._show()

    def _show(self) -> None:
        items = [*(self._newest.items if self._newest else []), *self._older]
        self._list.show([_event(one) for one in items])
        self._empty.set_visibility(not items)
        last = self._after
        self._more.set_visibility(last is not None and (last.next_run is not None or last.next_change is not None))

    async def _open_log(self, run_id: int) -> None:
        if self.log is not None:
            await self.log.load(run_id)


def _key(entry: TimelineEntry) -> str:
    return f"run {entry.run.id}" if entry.run else f"change {entry.change.id if entry.change else ''}"


def _event(entry: TimelineEntry) -> dict[str, Any]:
    run, change = entry.run, entry.change
    if run is not None:
        counts = [(run.rows_read, "rows read"), (run.rows_written, "written"), (run.rows_deleted, "deleted")]
        counts.append((run.rows_rejected, "rejected"))
        rows = ", ".join(f"{count:,} {verb}" for count, verb in counts if count)
        trigger = texts.TRIGGERS.get(run.trigger, run.trigger)
        return {
            "key": _key(entry),
            "at": entry.at.isoformat(),
            "title": texts.KINDS.get(run.kind, run.kind),
            "badge": texts.RUN_STATUS[run.status],
            "tone": parts.tone_of(run.status),
            "detail": f"{trigger}{' · ' if rows else ''}{rows}",
            "seconds": run.seconds,
            "error": run.error_message,
            "run": run.id,
        }
    assert change is not None  # noqa: S101  an entry is one of the two
    by = texts.BY.format(actor=change.actor, via=change.via)
    fields = [field for field in change.fields if field not in ("status", "request_id", "config_version")]
    return {
        "key": _key(entry),
        "at": entry.at.isoformat(),
        "title": texts.OPERATIONS.get(change.operation, change.operation),
        "tone": "change",
        "detail": f"{by}{': ' if fields else ''}{', '.join(fields)}",
    }


class LogCard:
    """The lines of one run, read after everything else."""

    def __init__(self, viewer: Viewer, name: str) -> None:
        self._viewer = viewer
        self._name = name
        with parts.box("v-card", tag="section") as self._card:
            with parts.box("v-card-head"):
                self._title = parts.text(texts.LOG, tag="h3")
            self._lines = parts.box("v-log")
        self._card.props["id"] = "log"
        self._card.set_visibility(False)

    async def load_newest(self) -> None:
        if self._card.visible:  # the browser has connected again
            return
        page = await self._viewer.call(history.list_runs, self._name, limit=1)
        if page is not None and page.items:
            await self.load(page.items[0].id, scroll=False)

    async def load(self, run_id: int, *, scroll: bool = True) -> None:
        found = await self._viewer.call(history.run_log, self._name, run_id)
        if found is not None:
            self._show(found)
            if scroll:
                self._viewer.client.run_javascript("document.getElementById('log').scrollIntoView({block: 'nearest'})")

    def _show(self, log: RunLogBody) -> None:
        self._card.set_visibility(True)
        parts.set_text(self._title, texts.LOG_TITLE.format(run=log.run_id))
        self._lines.clear()
        with self._lines:
            if log.dropped:
                parts.text(texts.LOG_DROPPED.format(count=log.dropped), "v-muted", tag="p")
            if not log.lines:
                parts.text(texts.LOG_EMPTY, "v-muted", tag="p")
            for line in log.lines:
                with parts.box("v-line") as row:
                    row.props["data-level"] = line.level
                    parts.when(line.at).classes("v-muted")
                    fields = " ".join(f"{name}={value}" for name, value in line.fields.items())
                    parts.text(f"{line.text} {fields}".strip())


SHOWN_REJECTS = 20

SHOWN_KEYS = 20


class ChecksCard:
    """What the checks of the pipeline have found in the rows of its last run."""

    def __init__(self) -> None:
        card, _ = titled_card(texts.CHECKS)
        self._card = card
        with card:
            self._box = parts.box("v-pad v-stack")
        card.set_visibility(False)
        self._shown: object = None

    def show(self, pipeline: PipelineBody, status: StatusBody) -> None:
        results = status.last_run.checks if status.last_run else None
        names = [check.label for check in pipeline.checks]
        if (names, results) == self._shown:
            return
        self._shown = (names, results)
        self._card.set_visibility(bool(names or results))
        self._box.clear()
        with self._box:
            if results is None:
                parts.text(texts.ROWS_NOT_CHECKED.format(names=", ".join(names)), "v-muted", tag="p")
            for one in results or ():
                tone = "success" if one.passed else "failed" if one.severity == "fail" else "late"
                with parts.box():
                    with parts.box("v-row"):
                        parts.badge(texts.PASSED if one.passed else texts.BROKEN[one.severity], tone)
                        parts.text(one.name, tag="strong")
                    if one.text:
                        parts.text(one.text, "v-sub")


class ReconcileCard:
    """The last deep reconcile, with the keys that differ."""

    def __init__(self, viewer: Viewer, name: str) -> None:
        self._viewer = viewer
        self._name = name
        card, head = titled_card(texts.RECONCILE)
        with card:
            self._box = parts.box("v-pad v-stack")
        if viewer.may(Role.OPERATOR):
            with head:
                parts.box("v-grow")
                parts.button(texts.VERIFY, self._verify)
                parts.button(texts.REPAIR, self._repair)
        self._shown: tuple[StoredReportBody | None] | None = None  # None: not known yet

    def show(self, report: StoredReportBody | None) -> None:
        if self._shown == (report,):
            return
        self._shown = (report,)
        self._box.clear()
        with self._box:
            if report is None:
                parts.text(texts.NO_RECONCILE, "v-muted", tag="p")
                return
            found = report.report
            with parts.box("v-row"):
                parts.badge(*((texts.EQUAL, "success") if found.equal else (texts.DIFFERENT, "failed")))
                parts.when(report.finished_at, age=True).classes("v-muted")
            parts.text(found.sentence, tag="p")
            _keys(texts.MISSING_KEYS, found.missing)
            _keys(texts.EXTRA_KEYS, found.extra)
            _keys(texts.DIFFERENT_KEYS, found.different, found.different.columns)

    async def _verify(self) -> None:
        done = texts.REQUESTED.format(pipeline=self._name)
        await self._viewer.act(done, control.request_reconcile, self._name, ReconcileBody(deep=True))

    async def _repair(self) -> None:
        title = texts.REPAIR_TITLE.format(target=self._name)
        if await parts.confirm(title, texts.REPAIR_EXPLAINED, texts.REPAIR, danger=True):
            done = texts.REQUESTED.format(pipeline=self._name)
            await self._viewer.act(done, control.request_reconcile, self._name, ReconcileBody(repair=True))


def _keys(label: str, keys: KeysBody, columns: dict[str, list[str]] | None = None) -> None:
    if not keys.count:
        return
    with parts.box("v-keys"):
        parts.text(f"{label}: {keys.count:,}", tag="strong")
        for key in keys.keys[:SHOWN_KEYS]:
            named = f"{key} ({', '.join((columns or {}).get(key, []))})" if columns else key
            parts.text(named, "v-mono")
        if keys.count > SHOWN_KEYS:
            parts.text(texts.KEYS_MORE.format(count=f"{keys.count - SHOWN_KEYS:,}"), "v-muted")


class RejectsCard:
    """Rows in quarantine, without their values."""

    def __init__(self, viewer: Viewer, name: str) -> None:
        self._viewer = viewer
        self._name = name
        card, head = titled_card(texts.REJECTS)
        with card:
            self._box = parts.box()
        with head:
            parts.box("v-grow")
            self._replay = parts.button(texts.REPLAY, self._start_replay)
            self._replay.set_visibility(False)
        self._shown: RejectPage | None = None

    def show(self, page: RejectPage) -> None:
        if page == self._shown:
            return
        self._shown = page
        self._replay.set_visibility(bool(page.items) and self._viewer.may(Role.OPERATOR))
        self._box.clear()
        with self._box:
            if not page.items:
                parts.text(texts.NO_REJECTS, "v-muted v-pad", tag="p")
                return
            parts.text(texts.REJECTS_HELP, "v-muted v-pad", tag="p")
            with _scrolled(), parts.box("v-table v-rejects", tag="table"):
                # a constraint of the whole row names no column
                named = any(one.column for one in page.items)
                with parts.box(tag="thead"):
                    table_row((texts.KEY, *([texts.COLUMN] if named else []), texts.REASON), tag="th")
                with parts.box(tag="tbody"):
                    for one in page.items:
                        table_row((one.key, *([one.column or "–"] if named else []), one.reason))
            if page.next is not None:
                parts.prose(texts.MORE_REJECTS.format(count=SHOWN_REJECTS), "v-muted v-pad")

    async def _start_replay(self) -> None:
        await self._viewer.act(texts.REQUESTED.format(pipeline=self._name), control.replay_rejects, self._name)


def _scrolled() -> Element:
    """A key or a reason may be long, and a page of them must not hide what follows."""
    made = parts.box("v-rejects-box")
    made.props["tabindex"] = "0"
    made.props["role"] = "region"
    made.props["aria-label"] = texts.REJECTS
    return made
