"""One pipeline: what it does now, what happened to it, and what an operator can do about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from fastapi import Request
from nicegui.element import Element

from vitrine.console import parts, texts
from vitrine.console.components import Sentence, Sql
from vitrine.console.pages.overview import address_of
from vitrine.console.pages.pipeline_cards import (
    SHOWN_EVENTS,
    SHOWN_REJECTS,
    Charts,
    CheckpointCard,
    ChecksCard,
    ErrorCard,
    EventsCard,
    LogCard,
    ProgressCard,
    ReconcileCard,
    RejectsCard,
    fact,
    iso,
    text_fact,
    titled,
)
from vitrine.console.viewer import Console, Viewer
from vitrine.core.status import Status
from vitrine.definition.files import dump
from vitrine.errors import NotFound, StoredDefinitionInvalid
from vitrine.operations import checks, control, definitions, history, overview
from vitrine.operations.bodies.checks import RejectPage
from vitrine.operations.bodies.control import RunRequestBody
from vitrine.operations.bodies.overview import RecentRunBody, TimelinePage
from vitrine.operations.bodies.pipelines import PipelineBody, StoredReportBody
from vitrine.operations.bodies.runs import StateBody, StatusBody
from vitrine.operations.context import Context, Role


def build_definition(pipeline: PipelineBody) -> None:
    """The task plan as a row of boxes, the queries, and every field that has not its default."""
    from vitrine.operations import changes  # slow to import

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
                for name, value in changes.flat(definition).items()
                if name not in ("source_query", "tasks", "description")
            }
            with parts.box("v-facts v-narrow", tag="dl"):
                for name, value in fields.items():
                    text_fact(name).classes("v-lines").set_text(shown_value(value))
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


LIVE_SECONDS = 1.0
HISTORY_SECONDS = 3.0
CHARTED_RUNS = 100


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
            history.list_timeline(context, name, limit=SHOWN_EVENTS),
            overview.recent_runs(context, [pipeline.id], limit=CHARTED_RUNS)[pipeline.id],
            checks.rejects(context, name, limit=SHOWN_REJECTS),
            reports[0] if reports else None,
        )
    except (NotFound, StoredDefinitionInvalid):
        return None


def register(console: Console) -> None:
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
        self._charts.promise(parts.longest_age(live.pipeline))
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
            self._facts = {label: fact(label) for label in (texts.FACT_FRESH, texts.FACT_DUE, texts.FACT_VERIFIED)}
            self._texts = {label: text_fact(label) for label in (texts.FACT_PROMISE, texts.FACT_MODE)}

    def _build_buttons(self) -> dict[str, Element]:
        with parts.box("v-row v-actions"):
            return {
                "run": parts.button(texts.RUN, self._run, primary=True),
                "resume": parts.button(texts.RESUME, self._resume, primary=True),
                "pause": parts.button(texts.PAUSE, self._pause),
                "full": parts.button(texts.FULL_RUN, self._full_run),
                "reload": titled(parts.button(texts.RELOAD, self._reload), texts.RELOAD_HELP),
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
        for label, at in ((texts.FACT_FRESH, status.fresh_as_of), (texts.FACT_VERIFIED, status.verified_until)):
            self._facts[label].set(iso(at))
        due, trigger = parts.next_start(status.status, status.next_due_at, pipeline.after, enabled=status.enabled)
        self._facts[texts.FACT_DUE].set(due, missing=trigger)
        parts.set_text(self._texts[texts.FACT_PROMISE], parts.promise(pipeline))
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
