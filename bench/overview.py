"""C1: the overview of the console over ten thousand pipelines and a million runs, beside its bare queries."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import DictRow

from bench import console_store, page_clients
from bench.console_store import LATE, LONGEST, QUIET_SECONDS, Bare, ConsoleStore
from bench.control import answers, free_port
from bench.measuring import Result, Samples, judge, seconds_of, turns
from bench.setup import Setup
from bench.waiting import wait_until
from vitrine.console.pages.overview import OUTCOMES, MartsPage, Query, read_marts
from vitrine.console.poller import MAX_READS, Poller
from vitrine.core.status import RETURNING
from vitrine.operations import overview
from vitrine.operations.bodies.overview import HealthBody, StateCounts
from vitrine.operations.context import Context

BAR = 3.0
REFRESHES = 30
"""In each round."""

LOADS = 2
VIEWERS = 20
SAME_BAR = 1.2
"""Statements for twenty viewers of one page, beside those for one viewer."""

SHOWN, RECENT = 50, 30

FILTERS: Mapping[str, Any] = dict.fromkeys(
    ("statuses", "target", "target_prefix", "enabled", "stale", "failed", "error", "tag", "owner", "search"), None
) | {"stale_crons": []}

BY_HAND = f"""
SELECT p.name, p.status, p.enabled, coalesce({LATE}, false) AS late,
       (SELECT rows_read FROM etl.etl_runs WHERE pipeline_id = p.id ORDER BY id DESC LIMIT 1) AS rows_read,
       (SELECT array_agg(status || ' ' || round(extract(epoch FROM finished_at - started_at) * 1000) ORDER BY id)
          FROM (SELECT * FROM etl.etl_runs WHERE pipeline_id = p.id ORDER BY id DESC LIMIT {RECENT}) r) AS runs
  FROM etl.etl_pipelines p ORDER BY p.name LIMIT {SHOWN}
"""


def beside_bare_queries(setup: Setup) -> list[Result]:
    with console_store.filled(setup) as store:
        return [_refreshed(setup, store), *_served(setup, store)]


# -- what the poller reads ---------------------------------------------------------------------------------------------


@dataclass
class _Refreshed:
    """What the poller has read for a page, as the page is shown it."""

    marts: MartsPage | None = None
    counts: StateCounts | None = None
    health: HealthBody | None = None


@dataclass
class _Overview:
    """The three topics of the overview, read as the poller of the API reads them."""

    poller: Poller
    shown: _Refreshed = field(default_factory=_Refreshed)

    def watch(self) -> None:
        for name, fetch in self._topics().items():
            self.poller.watch(name, fetch, lambda value, name=name: setattr(self.shown, name, value), every=0.0)

    def _topics(self) -> dict[str, Callable[[Context], Any]]:
        return {
            "marts": lambda context: read_marts(context, Query()),
            "counts": overview.counts,
            "health": overview.health,
        }

    async def refresh(self) -> float:
        self.poller.hurry()
        began = time.perf_counter()
        for name in self._topics():
            await self.poller.read(name)
        await asyncio.sleep(0)  # the page is shown
        return time.perf_counter() - began


async def _admit_all() -> None:
    return


def _refreshed(setup: Setup, store: ConsoleStore) -> Result:
    with store.reader() as context, store.bare() as bare, asyncio.Runner() as runner:
        page = _Overview(Poller(context, _admit_all))
        page.watch()
        for _ in range(5):
            runner.run(page.refresh())
            _bare_overview(bare)
        ours: list[float] = []
        by_hand: list[float] = []
        for _, ours_first in turns(setup.rounds * REFRESHES):
            if ours_first:
                ours.append(runner.run(page.refresh()))
            by_hand.append(seconds_of(lambda: _bare_overview(bare)))
            if not ours_first:
                ours.append(runner.run(page.refresh()))
        right = _is_right(store, page.shown)
    shown = f"{SHOWN} of {store.pipelines:,} marts with {RECENT} of {store.runs:,} runs each, counters, health"
    return beside_queries("C1", f"overview, refreshed: {shown}", ours, by_hand, right=right)


def beside_queries(
    row: str, workload: str, ours: Sequence[float], by_hand: Sequence[float], *, right: bool, note: str = ""
) -> Result:
    mine, bare = Samples(tuple(ours)), Samples(tuple(by_hand))
    ratio = mine.median / bare.median
    return Result(row, workload, f"≤ {BAR:g} × its queries", judge(ratio <= BAR, right=right), bare, mine, ratio, note)


def _bare_overview(bare: Bare) -> None:
    _bare_marts(bare)
    bare.rows("count_states", stale_crons=late_crons(bare), limit=100_000)
    bare.rows("get_health", limit=1001, within=timedelta(seconds=15))


def late_crons(bare: Bare) -> list[UUID]:
    """The ids of the marts that are late by their cron lines, in this store."""
    return [row["id"] for row in bare.rows("list_crons") if row["now"] - row["fresh_as_of"] > LONGEST]


def _bare_marts(bare: Bare, after: str = "") -> None:
    listed = bare.rows("list_selected", **FILTERS, after=after, limit=SHOWN + 1)[:SHOWN]
    late = [row["id"] for row in listed if row["schedule_interval"] and row["read_at"] - row["fresh_as_of"] > LONGEST]
    bare.rows("count_live_runners", within=timedelta(seconds=15))
    bare.rows("list_late_facts", ids=late, returning=sorted(RETURNING))
    bare.rows("list_sparklines", ids=[row["id"] for row in listed], limit=RECENT)


def _is_right(store: ConsoleStore, shown: _Refreshed) -> bool:
    """Whether the page has the values that statements written by hand find."""
    counted = store.database.fetch(
        f"""SELECT count(*) AS pipelines, count(*) FILTER (WHERE status = 'FAILED') AS failed,
                   count(*) FILTER (WHERE status = 'PAUSED') AS paused, count(*) FILTER (WHERE NOT enabled) AS disabled,
                   count(*) FILTER (WHERE {LATE}) AS stale FROM etl.etl_pipelines"""
    )[0]
    if shown.marts is None or shown.counts is None or shown.health is None:
        return False
    counts = shown.counts.model_dump()
    return (
        shows_marts(store, shown.marts.rows)
        and all(counts[name] == number for name, number in counted.items())
        and (shown.health.waiting, shown.health.running) == (0, 0)
    )


def shows_marts(store: ConsoleStore, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these rows of the table are the first page of the store."""
    return [_facts_of(row) for row in rows] == [_facts_by_hand(row) for row in store.database.fetch(BY_HAND)]


def _facts_of(row: Mapping[str, Any]) -> tuple[object, ...]:
    shown = zip(row["runs"]["outcomes"], row["runs"]["milliseconds"], strict=True)
    runs = [f"{OUTCOMES[number]['status']} {took}" for number, took in shown]
    return row["name"], row["status"], bool(row["late"]), row["last_run"]["rows"], runs


def _facts_by_hand(row: DictRow) -> tuple[object, ...]:
    status = str(row["status"]).capitalize() if row["enabled"] else "Disabled"
    return row["name"], status, row["late"], row["rows_read"], row["runs"]


# -- what the process serves -------------------------------------------------------------------------------------------


def _served(setup: Setup, store: ConsoleStore) -> list[Result]:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with store.installation.service("api", api_port=port):
        wait_until(lambda: answers(f"{address}/health"), "the API answers")
        return [_loaded(setup, store, address), _statements(store, address)]


def _loaded(setup: Setup, store: ConsoleStore, address: str) -> Result:
    """The request of a page while no other is open, so that everything is read for it.

    Both sides after a time without any statement: a session that has just executed its statements is faster.
    """
    ours: list[float] = []
    by_hand: list[float] = []
    with store.bare() as bare:
        _load(store, address)  # imports
        for _ in range(LOADS * setup.rounds):
            by_hand.append(seconds_of(lambda: _bare_overview(bare)))
            time.sleep(QUIET_SECONDS)
            ours.append(_load(store, address))
    return beside_queries("C1", "overview, loaded by the first viewer", ours, by_hand, right=True)


def _load(store: ConsoleStore, address: str) -> float:
    with page_clients.opened(address, 1) as clients:
        (seconds,) = clients.ask()["load_seconds"]
    store.wait_until_quiet()
    return seconds


def _statements(store: ConsoleStore, address: str) -> Result:
    """What open pages ask of the store, however many they are."""
    with page_clients.opened(address, 1):
        one = store.per_second()
    with page_clients.opened(address, VIEWERS) as clients:
        same = store.per_second()
        shown = clients.ask()
    right = shown["equal"] and shows_marts(store, shown["shown"]["rows"])
    owners = [f"/console?owner=owner-{number}" for number in range(VIEWERS)]
    with page_clients.opened(address, VIEWERS, *owners):
        different = store.per_second()
    store.wait_until_quiet()
    none = store.per_second()
    return Result(
        row="C1",
        workload=f"statements in a second: {VIEWERS} viewers beside one",
        bar=f"≤ {SAME_BAR:g} × as many, 0 without viewers",
        verdict=judge(same <= SAME_BAR * one and none == 0, right=right),
        ratio=same / one,
        note=f"one {one:.1f}, {VIEWERS} {same:.1f}, {VIEWERS} with filters of their own {different:.1f}, none {none:g}",
        facts={"one": one, "same": same, "different": different, "none": none, "most": MAX_READS},
    )
