"""Runners and sources: who is alive, what they run, and how busy each source is."""

from typing import Any

from fastapi import Request

from vitrine.console import parts, texts
from vitrine.console.components import Column, Table
from vitrine.console.pages.overview import address_of
from vitrine.console.viewer import NAVIGATION, Console, Entry, Viewer
from vitrine.operations import overview
from vitrine.operations.bodies.overview import LeaseBody, RunnerBody, RunnersBody, SourceBody

PATH = "/runners"

RUNNERS = (
    Column("name", texts.RUNNER, "code"),
    Column("state", texts.STATE, "badge"),
    Column("seen_at", texts.LAST_SEEN, "age"),
    Column("started_at", texts.UP_SINCE, "clock"),
    Column("runs", texts.RUNS_NOW, "number"),
)
LEASES = (
    Column("pipeline", texts.PIPELINE, "link"),
    Column("state", texts.STATE, "badge"),
    Column("runner", texts.RUNNER, "code"),
    Column("kind", texts.KIND),
    Column("started_at", texts.STARTED, "age"),
    Column("rows", texts.ROWS, "number", sub="expected"),
    Column("heartbeat_at", texts.HEARTBEAT, "age"),
    Column("expires_at", texts.LEASE_ENDS, "age"),
)
SOURCES = (
    Column("name", texts.SOURCE),
    Column("state", texts.STATE, "badge"),
    Column("running", texts.RUNNING, "number"),
    Column("waiting", texts.WAITING, "number"),
    Column("connections", texts.CONNECTIONS),
)


def register(console: Console) -> None:
    NAVIGATION.append(Entry(texts.RUNNERS, PATH))

    @console.page(PATH, title=texts.RUNNERS_PAGE)
    async def show(viewer: Viewer, request: Request) -> None:  # NiceGUI needs the name
        await RunnersPage(viewer).build()


class RunnersPage:
    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer

    async def build(self) -> None:
        with parts.box("v-card", tag="section"):
            _head(texts.RUNNERS)
            self._runners = Table(texts.RUNNERS, RUNNERS)
            with parts.box() as self._no_runner:
                parts.empty(texts.NO_RUNNER_TITLE, texts.NO_RUNNER_HELP, texts.NO_RUNNER_COMMAND)
            self._no_runner.set_visibility(False)  # not known yet
        with parts.box("v-card", tag="section"):
            _head(texts.RUNNING_NOW)
            self._leases = Table(texts.RUNNING_NOW, LEASES)
            self._no_lease = parts.text(texts.NOTHING_RUNS, "v-muted v-pad", tag="p")
            self._no_lease.set_visibility(False)
        with parts.box("v-card", tag="section"):
            _head(texts.SOURCES)
            self._sources = Table(texts.SOURCES, SOURCES)
        parts.text(texts.CONNECTIONS_HELP, "v-muted", tag="p")
        self._cut = parts.text(texts.RUNNERS_CUT, "v-muted", tag="p")
        self._cut.set_visibility(False)
        await self._viewer.watch("runners", overview.read_runners, self._show)

    def _show(self, found: RunnersBody) -> None:
        held = [lease.runner for lease in found.leases]
        self._runners.show([_runner(one, held.count(one.name)) for one in found.runners])
        self._runners.set_visibility(bool(found.runners))
        self._no_runner.set_visibility(not any(one.is_alive for one in found.runners))
        self._leases.show([_lease(one) for one in found.leases])
        self._leases.set_visibility(bool(found.leases))
        self._no_lease.set_visibility(not found.leases)
        self._sources.show([_source(one) for one in found.sources])
        self._cut.set_visibility(found.is_cut)


def _head(title: str) -> None:
    with parts.box("v-card-head"):
        parts.text(title, tag="h2")


def _runner(one: RunnerBody, runs: int) -> dict[str, Any]:
    state = {"text": texts.ALIVE, "tone": "success"} if one.is_alive else {"text": texts.SILENT, "tone": "failed"}
    return {
        "key": one.name,
        "name": one.name,
        "state": state,
        "seen_at": one.seen_at.isoformat(),
        "started_at": one.started_at.isoformat(),
        "runs": runs,
    }


def _lease(one: LeaseBody) -> dict[str, Any]:
    state = {"text": texts.STATUS[one.status], "tone": parts.tone_of(one.status)}
    expected = texts.OF_EXPECTED.format(rows=f"{one.rows_expected:,}") if one.rows_expected is not None else ""
    return {
        "key": one.pipeline,
        "pipeline": {"text": one.pipeline, "href": address_of(one.pipeline)},
        "state": {"text": texts.LEASE_EXPIRED, "tone": "failed"} if one.is_expired else state,
        "runner": one.runner,
        "kind": texts.KINDS.get(one.kind or "", one.kind),
        "started_at": one.started_at.isoformat() if one.started_at else None,
        "rows": one.rows_read,
        "expected": expected,
        "heartbeat_at": one.heartbeat_at.isoformat() if one.heartbeat_at else None,
        "expires_at": one.expires_at.isoformat(),
    }


def _source(one: SourceBody) -> dict[str, Any]:
    if not one.is_configured:
        state = {"text": texts.NOT_CONFIGURED, "tone": "failed"}
    elif one.max_connections is not None and one.connections + 1 >= one.max_connections:
        state = {"text": texts.SOURCE_FULL, "tone": "late"}
    else:
        state = {
            "text": texts.SOURCE_BUSY if one.running else texts.SOURCE_FREE,
            "tone": "running" if one.running else "idle",
        }
    limit = texts.NO_LIMIT if one.max_connections is None else texts.OF_LIMIT.format(limit=one.max_connections)
    return {
        "key": one.name,
        "name": one.name,
        "state": state,
        "running": one.running,
        "waiting": one.waiting,
        "connections": f"{one.connections} {limit}",
    }
