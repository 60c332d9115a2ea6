"""One pipeline: what it does now, what happened to it, and what an operator can do about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from fastapi import Request
from nicegui import ui
from nicegui.element import Element

from vitrine.console import origins, parts, promises, texts
from vitrine.console.components import Chart, Sentence, Sql, Timeline, When
from vitrine.console.pages.overview import address_of
from vitrine.console.viewer import Viewer
from vitrine.errors import NotFound, StoredDefinitionInvalid
from vitrine.pipeline_files.writing import dump
from vitrine.service import checks, control, definitions, history, overview, timeline
from vitrine.service.bodies.checks import RejectPage
from vitrine.service.bodies.control import RunRequestBody
from vitrine.service.bodies.overview import RecentRunBody, TimelineEntry, TimelinePage
from vitrine.service.bodies.pipelines import PipelineBody
from vitrine.service.bodies.reconciliation import KeysBody, ReconcileBody, StoredReportBody
from vitrine.service.bodies.runs import RunLogBody, StatusBody
from vitrine.service.bodies.state import StateBody
from vitrine.service.context import Context
from vitrine.service.roles import Role
from vitrine.status import Status

if TYPE_CHECKING:
    from vitrine.console.app import Console

LIVE_SECONDS = 1.0
HISTORY_SECONDS = 3.0
CHARTED_RUNS = 100
SHOWN_EVENTS = 25
SHOWN_REJECTS = 20
SHOWN_KEYS = 20


@dataclass(frozen=True)
class Live:
    """What changes during a run."""

    problem: str | None  # why there is nothing else
    pipeline: PipelineBody | None = None
    status: StatusBody | None = None
    state: StateBody | None = None


@dataclass(frozen=True)
class Past:
    """What changes with every run."""

    events: TimelinePage
    runs: list[RecentRunBody]
    rejects: RejectPage
    report: StoredReportBody | None


def read_live(context: Context, name: str) -> Live:
    try:
        pipeline = definitions.get(context, name)
        return Live(None, pipeline, history.status(context, name), history.state(context, name))
    except (NotFound, StoredDefinitionInvalid) as exc:
        return Live(str(exc))


def read_past(context: Context, name: str) -> Past | None:
    """None: there is no such pipeline."""
    try:
        pipeline = definitions.get(context, name)
        reports = history.list_reconciliations(context, name, limit=1).items
        return Past(
            timeline.list_page(context, name, limit=SHOWN_EVENTS),
            overview.recent_runs(context, [pipeline.id], limit=CHARTED_RUNS)[pipeline.id],
            checks.rejects(context, name, limit=SHOWN_REJECTS),
            reports[0] if reports else None,
        )
    except (NotFound, StoredDefinitionInvalid):
        return None


def register(console: "Console") -> None:
    @console.page("/pipelines/{name}", title=texts.PIPELINE)
    async def show(viewer: Viewer, request: Request) -> None:
        await PipelinePage(viewer, str(request.path_params["name"]).replace("\0", "")[:63]).build()


class PipelinePage:
    """Each part shows one subject; the page reads, and passes on what was read."""

    def __init__(self, viewer: Viewer, name: str) -> None:
        self._viewer = viewer
        self._name = name
        self._missing = parts.box()
        self._defined: object = None  # what the definition is shown of

    async def build(self) -> None:
        name = self._name
        self._viewer.client.title = f"{name} · {texts.PRODUCT}"
        with parts.box("v-page") as self._content:
            self._head = Head(self._viewer, name)
            self._progress = ProgressCard()
            self._error = ErrorCard()
            self._charts = Charts()
            with parts.box("v-columns"):
                with parts.box("v-stack"):
                    self._events = EventsCard(self._viewer, name)
                    self._log = LogCard(self._viewer, name)
                    self._events.log = self._log
                with parts.box("v-stack"):
                    self._checkpoint = CheckpointCard()
                    self._checks = ChecksCard()
                    self._reconcile = ReconcileCard(self._viewer, name)
                    self._rejects = RejectsCard(self._viewer, name)
            self._definition = parts.box("v-stack")
        live = await self._viewer.watch(
            ("live", name), lambda context: read_live(context, name), self._show_live, every=LIVE_SECONDS
        )
        # even if there is no such pipeline, or no answer: both may come while the page is open
        await self._viewer.watch(
            ("past", name), lambda context: read_past(context, name), self._show_past, every=HISTORY_SECONDS
        )
        if live is not None and live.problem is None:
            # the log comes last: the page is shown before it is read
            cast(Any, self._viewer.client).on_connect(self._log.load_newest)

    def _show_live(self, live: Live) -> None:
        self._missing.clear()
        self._content.set_visibility(live.problem is None)
        if live.pipeline is None or live.status is None or live.state is None:
            with self._missing, parts.box("v-card"):
                parts.empty(live.problem or texts.NO_PIPELINE.format(name=self._name), texts.NO_PIPELINE_HELP)
            return
        self._head.show(live.pipeline, live.status)
        self._progress.show(live.status)
        self._error.show(live.status)
        self._checkpoint.show(live.state)
        self._checks.show(live.pipeline, live.status)
        self._charts.promise(promises.longest_age(live.pipeline))
        shown = (live.pipeline.config_version, live.pipeline.managed_by)
        if self._defined != shown:
            self._defined = shown
            self._definition.clear()
            with self._definition:
                build_definition(live.pipeline)

    def _show_past(self, past: Past | None) -> None:
        if past is not None:
            self._events.show(past.events)
            self._charts.show(past.runs)
            self._rejects.show(past.rejects)
            self._reconcile.show(past.report)


class Head:
    """Name, state, what happens next, and the buttons."""

    def __init__(self, viewer: Viewer, name: str) -> None:
        self._viewer = viewer
        self._name = name
        self._target = ""
        with parts.box("v-head"):
            with parts.box("v-grow"):
                with parts.box("v-row"):
                    parts.text(name, "v-title", tag="h2")
                    self._status = parts.badge("–", "idle")
                    self._late = parts.badge(texts.LATE, "late")
                self._sub = parts.text("", "v-muted", tag="p")
                self._description = parts.text("", tag="p")
            if viewer.may(Role.OPERATOR):
                self._buttons = self._build_buttons()
            else:
                self._buttons = {}
        self._sentence = Sentence().classes("v-sentence")
        with parts.box("v-facts", tag="dl"):
            self._facts = {label: _fact(label) for label in (texts.FACT_FRESH, texts.FACT_DUE, texts.FACT_VERIFIED)}
            self._texts = {label: _text_fact(label) for label in (texts.FACT_PROMISE, texts.FACT_MODE)}

    def _build_buttons(self) -> dict[str, Element]:
        with parts.box("v-row v-actions"):
            return {
                "run": parts.button(texts.RUN, self._run, primary=True),
                "resume": parts.button(texts.RESUME, self._resume, primary=True),
                "pause": parts.button(texts.PAUSE, self._pause),
                "full": parts.button(texts.FULL_RUN, self._full_run),
                "reload": _titled(parts.button(texts.RELOAD, self._reload), texts.RELOAD_HELP),
                "enable": parts.button(texts.ENABLE, self._enable, primary=True),
                "disable": parts.button(texts.DISABLE, self._disable),
                **({"edit": _edit_link(self._name)} if self._viewer.may(Role.ADMIN) else {}),
            }

    def show(self, pipeline: PipelineBody, status: StatusBody) -> None:
        self._target = pipeline.target_table
        parts.set_text(self._status, texts.STATUS[status.status] if status.enabled else texts.DISABLED)
        parts.set_attribute(self._status, "data-tone", parts.tone_of(status.status) if status.enabled else "disabled")
        self._late.set_visibility(status.stale)
        labels = [pipeline.target_table, pipeline.owner, *(f"#{tag}" for tag in pipeline.tags)]
        parts.set_text(self._sub, " · ".join(label for label in labels if label))
        parts.set_text(self._description, pipeline.description)
        self._sentence.show(_sentence(status))
        for label, at in (
            (texts.FACT_FRESH, status.fresh_as_of),
            (texts.FACT_DUE, status.next_due_at),
            (texts.FACT_VERIFIED, status.verified_until),
        ):
            self._facts[label].set(_iso(at))
        parts.set_text(self._texts[texts.FACT_PROMISE], promises.promise(pipeline))
        parts.set_text(self._texts[texts.FACT_MODE], pipeline.mode)
        self._show_buttons(pipeline, status)

    def _show_buttons(self, pipeline: PipelineBody, status: StatusBody) -> None:
        is_paused = status.status in (Status.PAUSED, Status.PAUSE_REQUESTED)
        is_running = status.status in (Status.RUNNING, Status.PAUSE_REQUESTED)
        visible = {
            "run": status.enabled and not is_paused,
            "resume": status.enabled and is_paused,
            "pause": status.enabled and not is_paused and status.status is not Status.FAILED,
            "full": status.enabled and pipeline.mode == "incremental",
            "reload": is_running,
            "enable": not status.enabled,
            "disable": status.enabled,
            "edit": True,
        }
        for name, button in self._buttons.items():
            if button.visible != visible[name]:
                button.set_visibility(visible[name])

    async def _run(self) -> None:
        await self._viewer.act(texts.REQUESTED.format(pipeline=self._name), control.run, self._name)

    async def _full_run(self) -> None:
        title, explained = texts.FULL_RUN_TITLE.format(name=self._name), texts.FULL_RUN_EXPLAINED
        if await parts.confirm(title, explained.format(target=self._target), texts.FULL_RUN):
            done = texts.REQUESTED.format(pipeline=self._name)
            await self._viewer.act(done, control.run, self._name, RunRequestBody(mode="full"))

    async def _resume(self) -> None:
        await self._viewer.act(texts.REQUESTED.format(pipeline=self._name), control.resume, self._name)

    async def _pause(self) -> None:
        await self._viewer.act(texts.PAUSED_DONE, control.pause, self._name)

    async def _reload(self) -> None:
        await self._viewer.act(texts.RELOADED, control.reload, self._name)

    async def _enable(self) -> None:
        await self._viewer.act(texts.ENABLED_DONE, definitions.set_enabled, self._name, True)

    async def _disable(self) -> None:
        title = texts.DISABLE_TITLE.format(name=self._name)
        if await parts.confirm(title, texts.DISABLE_EXPLAINED, texts.DISABLE, danger=True):
            await self._viewer.act(texts.DISABLED_DONE, definitions.set_enabled, self._name, False)


def _sentence(status: StatusBody) -> str:
    """Why the mart is late or, if it is not, why nothing happens."""
    if status.status is Status.FAILED and status.last_error is not None:
        return ""
    if status.stale and status.late_reason:
        return texts.WHY_LATE.format(reason=status.late_reason)
    sentence = "" if _is_shown_elsewhere(status) else status.waiting or ""
    return f"{sentence[:1].upper()}{sentence[1:]}"


def _is_shown_elsewhere(status: StatusBody) -> bool:
    """A due time has a place of its own, with times in the viewer's zone."""
    return (
        status.status is Status.IDLE and status.next_due_at is not None and not status.postponed and status.runners > 0
    )


def _edit_link(name: str) -> Element:
    return parts.link(texts.EDIT, f"{address_of(name)}/edit", "v-button")


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
                parts.badge(origins.origin_of(error.code, error.message), "failed")
                parts.text(error.code, "v-mono v-muted")
                parts.when(error.at, age=True).classes("v-muted")
            with parts.box("v-code-box"):
                parts.text(error.message, "v-error-text", tag="p")
                parts.copy_button(f"{status.pipeline}: {error.code}: {error.message}")
            if status.status is Status.FAILED:
                parts.text(texts.ERROR_REMEDY, "v-muted", tag="p")


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
        self._rows.show([_point(run, run.rows_read) for run in runs])
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
        card, _ = _card(texts.TIMELINE)
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
            timeline.list_page,
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


class CheckpointCard:
    def __init__(self) -> None:
        card, _ = _card(texts.CHECKPOINT)
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
                    _text_fact(texts.CURSOR).set_text(", ".join(state.cursor))
                if state.generation:
                    generation = str(state.generation)
                    if state.generation_open:
                        rows = f"{state.generation_rows:,}"
                        generation = texts.GENERATION_OPEN.format(generation=generation, rows=rows)
                    _text_fact(texts.GENERATION).set_text(generation)
                _text_fact(texts.BATCH_SEQ).set_text(f"{state.batch_seq:,}")
                if state.horizon_blocker:
                    _text_fact(texts.HELD_BACK).set_text(state.horizon_blocker)
                _fact(texts.SAVED_AT).set(_iso(state.updated_at))


class ChecksCard:
    """What the checks of the pipeline have found in the rows of its last run."""

    def __init__(self) -> None:
        card, _ = _card(texts.CHECKS)
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
        card, head = _card(texts.RECONCILE)
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
        card, head = _card(texts.REJECTS)
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
            with parts.box("v-table v-rejects", tag="table"):
                # a constraint of the whole row names no column
                named = any(one.column for one in page.items)
                with parts.box(tag="thead"):
                    _row((texts.KEY, *([texts.COLUMN] if named else []), texts.REASON), tag="th")
                with parts.box(tag="tbody"):
                    for one in page.items:
                        _row((one.key, *([one.column or "–"] if named else []), one.reason))
            if page.next is not None:
                parts.text(texts.MORE_REJECTS.format(count=SHOWN_REJECTS), "v-muted v-pad", tag="p")

    async def _start_replay(self) -> None:
        await self._viewer.act(texts.REQUESTED.format(pipeline=self._name), control.replay_rejects, self._name)


def build_definition(pipeline: PipelineBody) -> None:
    """The task plan as a row of boxes, the queries, and every field that has not its default."""
    from vitrine import revisions  # slow to import

    definition = pipeline.definition()
    queries = [step.body for step in definition.tasks if step.task_type == "SQL" and step.body]
    if definition.source_query and not definition.tasks:
        queries.append(definition.source_query)
    with parts.box("v-card", tag="section"):
        with parts.box("v-card-head"):
            parts.text(texts.DEFINITION, tag="h3")
            parts.text(texts.VERSION.format(version=pipeline.config_version), "v-muted")
            if pipeline.managed_by is not None:
                parts.text(texts.MANAGED.format(file=pipeline.managed_by.file), "v-muted")
                parts.when(pipeline.managed_by.applied_at, age=True).classes("v-muted")
                if pipeline.managed_by.differs:
                    parts.badge(texts.CHANGED_SINCE, "late").props["title"] = texts.CHANGED_SINCE_HELP
        with parts.box("v-pad v-stack"):
            _plan(plan_boxes(pipeline))
            for query in queries:
                with parts.box("v-code-box"):
                    Sql(query)
                    parts.copy_button(query)
            fields = {
                name: value
                for name, value in revisions.flat(definition).items()
                if name not in ("source_query", "tasks", "description")
            }
            with parts.box("v-facts v-narrow", tag="dl"):
                for name, value in fields.items():
                    _text_fact(name).classes("v-lines").set_text(shown_value(value))
            parts.text(texts.ONLY_DIFFERENT, "v-sub", tag="p")


def shown_value(value: object) -> str:
    """A field as a person would write it: values in one line, mappings as YAML."""
    if isinstance(value, dict):
        return dump(cast(dict[str, Any], value)).rstrip()
    if not isinstance(value, list):
        return str(value)
    items = cast(list[Any], value)
    return dump(items).rstrip() if any(isinstance(one, dict) for one in items) else ", ".join(map(str, items))


def plan_boxes(pipeline: PipelineBody) -> list[tuple[str, str]]:
    """What the rows pass, each with its kind: source, steps, target."""
    boxes = [(texts.SOURCE, f"{pipeline.source} ({pipeline.source_type})")]
    for step in pipeline.tasks:
        if step.task_type == "PYTHON":
            boxes.append((texts.TRANSFORM, step.body or "–"))
        else:
            boxes.append(("SQL", step.source_table or texts.QUERY))
    if not pipeline.tasks:
        if pipeline.source_query:
            boxes.append(("SQL", texts.QUERY))
        if pipeline.python_task:
            boxes.append((texts.TRANSFORM, pipeline.python_task))
    return [*boxes, (texts.TARGET, pipeline.target_table)]


def _plan(boxes: Sequence[tuple[str, str]]) -> None:
    with parts.box("v-plan", tag="ol") as plan:
        plan.props["aria-label"] = texts.TASK_PLAN
        for kind, name in boxes:
            with parts.box("v-step", tag="li"):
                parts.text(kind, "v-label")
                parts.text(name, "v-mono")


def _card(title: str) -> tuple[Element, Element]:
    """A card with a title; the card, and its head, where buttons can be added."""
    with parts.box("v-card", tag="section") as card, parts.box("v-card-head") as head:
        parts.text(title, tag="h3")
    return card, head


def _titled(element: Element, title: str) -> Element:
    element.props["title"] = title
    return element


def _fact(label: str) -> When:
    parts.text(label, tag="dt")
    with parts.box(tag="dd"):
        return When(None, age=True, missing="–")


def _text_fact(label: str) -> ui.label:
    parts.text(label, tag="dt")
    return parts.text("–", tag="dd")


def _row(cells: Sequence[str], *, tag: str = "td") -> None:
    with parts.box(tag="tr"):
        for cell in cells:
            parts.text(cell, tag=tag)


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at else None
