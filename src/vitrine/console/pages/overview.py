"""The first page: every mart with its state, counters that filter, and the health of the installation."""

import json
import re
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast
from urllib.parse import quote, urlencode

from fastapi import Request
from nicegui import ui

from vitrine.console import parts, texts
from vitrine.console.components import Counters, Groups, Health, Marts
from vitrine.console.poller import Fetch
from vitrine.console.viewer import HOME, Console, Viewer
from vitrine.core.status import Status
from vitrine.definition.model import TAG
from vitrine.operations import definitions, many, overview
from vitrine.operations.bodies.filters import ChangedMany, Filters, RunManyBody
from vitrine.operations.bodies.overview import GroupCounts, HealthBody, StateCounts
from vitrine.operations.bodies.pipelines import ListedPipelineBody
from vitrine.operations.context import Context, Role
from vitrine.store.lists import Sparkline

PAGE_SIZE = 50
SLOWER_SECONDS = 4.0
"""For what reads every pipeline: counters and groups."""

MAX_TEXT = 200
"""As long as an owner may be."""

STATES: dict[str, dict[str, Any]] = {
    "": {},
    "running": {"status": (Status.RUNNING, Status.PAUSE_REQUESTED)},
    "waiting": {"status": (Status.RUN_REQUESTED,)},
    "failed": {"status": (Status.FAILED,)},
    "late": {"stale": True},
    "paused": {"status": (Status.PAUSED,)},
    "disabled": {"enabled": False},
}
"""The counters, and what each of them filters."""

Action = Literal["run", "pause", "resume"]


@dataclass(frozen=True)
class Query:
    """What the address of the page says."""

    state: str = ""
    search: str = ""
    owner: str = ""
    tag: str = ""
    group: str = ""
    after: str = ""

    @classmethod
    def of(cls, request: Request) -> "Query":
        given = {name: request.query_params.get(name, "").replace("\0", "")[:MAX_TEXT] for name in asdict(cls())}
        found = cls(**given)
        # what is not a filter must not look like one: actions on all that is filtered follow
        return replace(
            found,
            state=found.state if found.state in STATES else "",
            tag=found.tag if re.fullmatch(TAG, found.tag) else "",
            group=found.group if found.group in ("owner", "tag") else "",
        )

    @property
    def address(self) -> str:
        given = {name: value for name, value in asdict(self).items() if value}
        return f"{HOME}?{urlencode(given)}" if given else HOME

    @property
    def filters(self) -> Filters:
        return Filters(
            **STATES[self.state],
            search=self.search or None,
            owner=self.owner or None,
            tag=self.tag or None,
        )


@dataclass(frozen=True)
class MartsPage:
    """One page of the table, as the component shows it."""

    rows: list[dict[str, Any]]
    next: str | None


def read_marts(context: Context, query: Query) -> MartsPage:
    """The pipelines with their newest runs, why some are late, and the last runs of all of them."""
    page = definitions.list_page(context, query.filters, after=query.after, limit=PAGE_SIZE)
    runs = overview.sparklines(context, [one.id for one in page.items])
    rows = [_row(one) | {"runs": _bars(runs[one.id])} for one in page.items]
    rows += [_invalid_row(one.name, one.reason) for one in page.invalid]
    return MartsPage(sorted(rows, key=lambda row: str(row["name"])), page.next)


def _marts(query: Query) -> tuple[Hashable, Fetch[MartsPage]]:
    """What the page watches for this address."""
    return ("marts", query), lambda context: read_marts(context, query)


def address_of(name: str) -> str:
    return f"{HOME}/pipelines/{quote(name)}"


OUTCOMES = tuple(
    {"status": status, "text": text, "tone": parts.tone_of(status)} for status, text in texts.RUN_STATUS.items()
)
"""How the table shows the statuses of runs."""

_NUMBER_OF = {one["status"]: number for number, one in enumerate(OUTCOMES)}


def _bars(runs: Sparkline) -> dict[str, list[int]]:
    """The runs of a mart in numbers; a text of each run would be most of what a page is sent."""
    return {
        "outcomes": [_NUMBER_OF[status] for status in runs.statuses],
        "milliseconds": runs.milliseconds,
        "started": runs.started,
    }


def _row(one: ListedPipelineBody) -> dict[str, Any]:
    run = one.last_run
    due, trigger = parts.next_start(one.status, one.next_due_at, one.after, enabled=one.enabled)
    return {
        "name": one.name,
        "href": address_of(one.name),
        "target": one.target_table,
        "status": texts.STATUS[one.status] if one.enabled else texts.DISABLED,
        "tone": parts.tone_of(one.status) if one.enabled else "disabled",
        "fresh_as_of": one.fresh_as_of.isoformat() if one.fresh_as_of else None,
        "promise": parts.promise(one),
        "late": one.stale,
        "cause": one.late_reason if one.stale else None,
        "error": one.last_error.message if one.last_error else None,
        "next_due_at": due,
        "trigger": trigger,
        "last_run": run
        and {
            "status": texts.RUN_STATUS[run.status],
            "tone": parts.tone_of(run.status),
            "at": run.started_at.isoformat(),
            "seconds": run.seconds,
            "kind": "" if run.kind in ("full", "incremental") else texts.KINDS.get(run.kind, run.kind),
            # a mart would look empty after it was only compared
            "rows": None if run.kind in ("reconcile", "rollback") else run.rows_read,
        },
    }


def _invalid_row(name: str, reason: str) -> dict[str, Any]:
    """A stored definition that is not valid: nothing runs it."""
    return {
        "name": name,
        "href": address_of(name),
        "target": "",
        "status": texts.INVALID,
        "tone": "failed",
        "fresh_as_of": None,
        "promise": "",
        "late": True,
        "cause": reason,
        "error": None,
        "next_due_at": None,
        "trigger": "–",
        "last_run": None,
        "runs": {"outcomes": [], "milliseconds": [], "started": []},
    }


def register(console: Console) -> None:
    @console.page("/", title=texts.OVERVIEW)
    async def show(viewer: Viewer, request: Request) -> None:
        await OverviewPage(viewer, Query.of(request)).build()


class OverviewPage:
    def __init__(self, viewer: Viewer, query: Query) -> None:
        self._viewer = viewer
        self._query = query
        self._grouped = ""
        self._read_health: HealthBody | None = None

    async def build(self) -> None:
        marts, read = _marts(self._query)
        self._viewer.expect(marts, read)
        self._viewer.expect("counts", overview.counts, every=SLOWER_SECONDS)
        self._viewer.expect("health", overview.health)
        self._health = Health(texts.HEALTH)
        self._counters = Counters(texts.COUNTERS, lambda state: self._apply(state=state if state in STATES else ""))
        self._counters.show(_counters(None))
        with parts.box("v-toolbar"):
            self._build_filters()
        self._groups = Groups(texts.GROUPS, self._choose_group)
        self._no_groups = parts.text(texts.NO_GROUPS, "v-muted", tag="p")
        self._no_groups.set_visibility(False)
        with parts.box("v-card"):
            self._marts = Marts(texts.MARTS, OUTCOMES)
            self._empty = parts.box()
        with parts.box("v-pager") as self._pager:
            self._first = parts.button(texts.FIRST_PAGE, self._first_page)
            self._more = parts.button(texts.NEXT_PAGE.format(count=PAGE_SIZE), self._next)
        self._following: str | None = None
        await self._viewer.watch("health", overview.health, self._show_health)
        self._viewer.on_problem(self._show_database)
        await self._viewer.watch("counts", overview.counts, self._show_counts, every=SLOWER_SECONDS)
        await self._watch()

    def _build_filters(self) -> None:
        query = self._query
        search = ui.input(placeholder=texts.SEARCH, value=query.search).classes("v-search")
        search.props('dense outlined clearable debounce="300" type="search"')
        search.props["aria-label"] = texts.SEARCH
        search.on_value_change(lambda event: self._apply(search=(event.value or "").replace("\0", "")[:MAX_TEXT]))
        group = ui.select({"": texts.NO_GROUP, "owner": texts.BY_OWNER, "tag": texts.BY_TAG}, value=query.group)
        group.props("dense outlined options-dense").classes("v-select")
        group.props["aria-label"] = texts.GROUP_BY
        group.on_value_change(lambda event: self._apply(group=event.value or ""))
        with parts.box("v-chips") as self._chips:
            pass
        if self._viewer.may(Role.OPERATOR):
            with parts.box("v-row v-bulk") as self._bulk:
                for action, label in texts.BULK.items():
                    parts.button(label, self._bulk_handler(cast(Action, action)))
        else:
            self._bulk = None
        self._show_chips()

    def _choose(self, **changes: str) -> Callable[[], Any]:
        async def choose() -> None:
            await self._apply(**changes)

        return choose

    async def _first_page(self) -> None:
        await self._turn("")

    async def _next(self) -> None:
        if self._following:
            await self._turn(self._following)

    async def _turn(self, after: str) -> None:
        """Another page begins at its first row; the button that was clicked is below the last one."""
        await self._apply(after=after)
        self._viewer.client.run_javascript("document.querySelector('.v-marts').scrollIntoView()")

    async def _apply(self, **changes: str) -> None:
        """Another filter: in the address, and in what is watched."""
        before = self._query
        self._query = replace(before, **({"after": ""} | changes))
        if self._query == before:
            return
        self._viewer.unwatch(_marts(before)[0])
        self._viewer.unwatch(("groups", before.group))
        self._viewer.client.run_javascript(f"history.pushState(null, '', {json.dumps(self._query.address)})")
        self._show_chips()
        await self._watch()

    async def _watch(self) -> None:
        query = self._query
        self._counters.choose(query.state)
        self._first.set_visibility(bool(query.after))
        if query.group != self._grouped:
            self._grouped = query.group
            self._groups.show([])
            self._no_groups.set_visibility(False)
        if query.group:
            by = cast(Literal["owner", "tag"], query.group)
            await self._viewer.watch(
                ("groups", by), lambda context: overview.groups(context, by), self._show_groups, every=SLOWER_SECONDS
            )
            if query != self._query:  # another filter was chosen meanwhile
                return
        await self._viewer.watch(*_marts(query), self._show_marts)

    def _show_health(self, health: HealthBody) -> None:
        self._read_health = health
        self._health.show(_health(health))

    def _show_database(self, problem: str | None) -> None:
        """What was read last says that the database responds."""
        if self._read_health is not None:
            self._health.show(_health(self._read_health, responds=problem != texts.NO_RESPONSE))

    def _show_counts(self, counts: StateCounts) -> None:
        self._counters.show(_counters(counts))

    def _show_marts(self, page: MartsPage) -> None:
        self._marts.show(page.rows)
        self._marts.set_visibility(bool(page.rows))
        self._following = page.next
        self._more.set_visibility(page.next is not None)
        self._empty.clear()
        if page.rows:
            return
        with self._empty:
            if self._query.filters.is_empty and not self._query.after:
                parts.empty(texts.NO_PIPELINES, texts.NO_PIPELINES_HELP, texts.FIRST_COMMANDS)
            else:
                with parts.box("v-empty"):
                    parts.text(texts.NOTHING_MATCHES, tag="h2")
                    parts.button(texts.RESET_FILTERS, self._choose(state="", search="", owner="", tag="", after=""))

    def _show_groups(self, groups: list[GroupCounts]) -> None:
        self._no_groups.set_visibility(not groups)
        chosen = getattr(self._query, self._query.group)
        self._groups.show([_group(one, is_chosen=one.name == chosen) for one in groups])

    def _choose_group(self, name: str) -> Awaitable[None] | None:
        return self._apply(**{self._query.group: name}) if self._query.group else None

    def _show_chips(self) -> None:
        self._chips.clear()
        with self._chips:
            for field, label in (("owner", texts.OWNER), ("tag", texts.TAG)):
                if value := getattr(self._query, field):
                    name = texts.REMOVE_FILTER.format(filter=f"{label} {value}")
                    parts.button(f"{label}: {value} ×", self._choose(**{field: ""}), name=name).classes("v-chip")
        if self._bulk is not None:
            self._bulk.set_visibility(not self._query.filters.is_empty)

    def _bulk_handler(self, action: Action) -> Callable[[], Any]:
        async def act() -> None:
            await self._act_on_many(action, self._query.filters)

        return act

    async def _act_on_many(self, action: Action, filters: Filters) -> None:
        found = await self._viewer.call(change_many, action, filters, dry_run=True)
        if found is None:
            return
        if not found.matched:
            self._viewer.tell(texts.NOTHING_MATCHES)
            return
        count = parts.capped(found.matched + bool(found.next))
        title = texts.BULK_TITLE_ONE[action] if found.matched == 1 else texts.BULK_TITLE[action].format(count=count)
        named = ", ".join(found.names[:8]) + (" …" if found.matched > 8 else "")
        if not await parts.confirm(title, f"{texts.BULK_EXPLAINED[action]} ({named})", texts.BULK[action]):
            return
        changed, refused, reason = 0, 0, ""
        after: str | None = ""
        working = ui.notification(texts.BULK_WORKING.format(count=count), spinner=True, timeout=None, position="bottom")
        while after is not None:
            answer = await self._viewer.call(change_many, action, filters, after=after)
            if answer is None:  # the reason is shown; what was done is reported as well
                break
            changed, refused = changed + len(answer.changed), refused + len(answer.refused)
            reason = reason or next((f" {one.reason}" for one in answer.refused), "")
            after = answer.next
            working.message = texts.BULK_PROGRESS.format(done=changed + refused, count=count)
        working.dismiss()
        is_problem = refused > 0 or after is not None
        self._viewer.tell(texts.BULK_DONE.format(changed=changed, refused=refused) + reason, problem=is_problem)
        self._viewer.poller.hurry()


def change_many(
    context: Context, action: Action, filters: Filters, *, dry_run: bool = False, after: str = ""
) -> ChangedMany:
    """One of the three changes, with the same answer."""
    match action:
        case "pause":
            return many.pause_many(context, filters, dry_run=dry_run, after=after)
        case "resume":
            return many.resume_many(context, filters, dry_run=dry_run, after=after)
        case "run":
            body = RunManyBody(**filters.model_dump(exclude_none=True), dry_run=dry_run, after=after)
            runs = many.run_many(context, body)
            return ChangedMany(
                matched=runs.matched,
                names=runs.names,
                changed=[one.pipeline for one in runs.requested],
                refused=runs.refused,
                next=runs.next,
            )


def _counters(counts: StateCounts | None) -> list[dict[str, Any]]:
    """None: not read yet."""
    figures = counts and {
        "": counts.pipelines,
        "running": counts.running + counts.pause_requested,
        "waiting": counts.run_requested,
        "failed": counts.failed,
        "late": counts.stale,
        "paused": counts.paused,
        "disabled": counts.disabled,
    }
    return [
        {
            "state": state,
            "label": label,
            "figure": parts.capped(figures[state]) if figures else "–",
            "isZero": figures is not None and not figures[state],
        }
        for state, label in texts.COUNTER_LABELS.items()
    ]


def _group(one: GroupCounts, *, is_chosen: bool) -> dict[str, Any]:
    badges = (
        (one.failed, texts.STATUS["FAILED"], "failed"),
        (one.stale, texts.LATE, "late"),
        (one.running, texts.STATUS["RUNNING"], "running"),
    )
    return {
        "name": one.name,
        "figure": str(one.pipelines),
        "badges": [{"text": f"{count} {label.lower()}", "tone": tone} for count, label, tone in badges if count],
        "isChosen": is_chosen,
    }


def _health(health: HealthBody, *, responds: bool = True) -> list[dict[str, Any]]:
    """One line: runners, queue, running, database, horizon."""
    none = health.runners == 0
    waits = health.oldest_wait
    oldest = texts.OLDEST.format(duration=parts.duration(waits)) if waits is not None and waits >= 5 else ""
    lag = health.horizon_lag
    is_held = lag is not None and bool(health.held_pipeline)
    held = texts.HORIZON_HELD.format(pipeline=health.held_pipeline, blocker=health.horizon_blocker) if is_held else ""
    horizon = parts.duration(lag) if lag is not None and is_held else texts.HORIZON_OK
    return [
        _value("runners", str(health.runners), texts.NO_RUNNER if none else "", is_problem=none),
        _value("queue", parts.capped(health.waiting), oldest, is_problem=waits is not None and waits > 300),
        _value("running", parts.capped(health.running)),
        _value("database", texts.DATABASE_OK if responds else texts.DATABASE_SILENT, is_problem=not responds),
        _value("horizon", horizon, held, is_problem=is_held),
    ]


def _value(name: str, value: str, detail: str = "", *, is_problem: bool = False) -> dict[str, Any]:
    return {"label": texts.HEALTH_LABELS[name], "value": value, "detail": detail, "isProblem": is_problem}
