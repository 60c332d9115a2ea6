"""C3: the lineage of ten thousand pipelines, refreshed, beside its bare queries."""

import time

from bench import console_store
from bench.console_store import LATE, Bare, ConsoleStore
from bench.measuring import Result, seconds_of, turns
from bench.overview import REFRESHES, beside_queries, late_crons
from bench.setup import Setup
from vitrine.operations import overview
from vitrine.operations.bodies.overview import Graph
from vitrine.operations.context import Context


def refreshed(setup: Setup) -> Result:
    """After the calls that parse every query; the note has these, and the call after one definition has changed."""
    with (
        console_store.filled(setup, all_runs=0) as store,
        store.reader() as context,
        store.bare() as bare,
    ):
        return _measure(setup, store, context, bare)


def _measure(setup: Setup, store: ConsoleStore, context: Context, bare: Bare) -> Result:
    memory = overview.Memory()

    def refresh() -> Graph:
        return overview.read_lineage(context, memory=memory)

    parsing = [seconds_of(refresh)]
    while memory.kept is None or memory.kept.graph.topology.unread:
        parsing.append(seconds_of(refresh))
    store.database.execute("UPDATE etl.etl_pipelines SET config_version = config_version + 1 WHERE name = 'p0100'")
    began = time.process_time()
    refresh()
    changed = time.process_time() - began
    ours: list[float] = []
    by_hand: list[float] = []
    for _, ours_first in turns(setup.rounds * REFRESHES):
        if ours_first:
            ours.append(seconds_of(refresh))
        by_hand.append(seconds_of(lambda: _bare_states(bare)))
        if not ours_first:
            ours.append(seconds_of(refresh))
    found = refresh()
    first = f"parsed in {len(parsing)} calls, {sum(parsing):.0f} s"
    note = f"{len(found.nodes):,} nodes; {first}; a changed definition {changed:.2f} s of processor time"
    workload = f"lineage of {store.pipelines:,} pipelines, refreshed"
    return beside_queries("C3", workload, ours, by_hand, right=_is_right(store, found), note=note)


def _bare_states(bare: Bare) -> None:
    bare.rows("get_lineage_version", limit=overview.MAX_PIPELINES + 1)
    bare.rows("list_lineage_states", stale_crons=late_crons(bare), limit=overview.MAX_PIPELINES)


def _is_right(store: ConsoleStore, found: Graph) -> bool:
    """A node for each pipeline, each mart and each source table, and the troubles that a statement by hand finds."""
    (expected,) = store.database.fetch(
        f"""SELECT 2 * count(*) + least(count(*), 500) + least(count(*), 300) AS nodes,
                   count(*) FILTER (WHERE enabled AND status = 'FAILED') AS failed,
                   count(*) FILTER (WHERE NOT (enabled AND status = 'FAILED') AND {LATE}) AS late
              FROM etl.etl_pipelines"""
    )
    troubles = [state.trouble for state in found.states.values()]
    counted = {"nodes": len(found.nodes), "failed": troubles.count("failed"), "late": troubles.count("late")}
    return counted == expected
