"""What happened to a pipeline: charts of its runs, the timeline, the log of a run."""

from collections.abc import Sequence
from typing import Any

from vitrine.console import parts, texts
from vitrine.console.components import Chart, Timeline
from vitrine.console.pages.pipeline_parts import titled_card
from vitrine.console.viewer import Viewer
from vitrine.service import history, timeline
from vitrine.service.bodies.overview import RecentRunBody, TimelineEntry, TimelinePage
from vitrine.service.bodies.runs import RunLogBody

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
