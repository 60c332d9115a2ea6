"""`python -m bench`: measure Vitrine beside psql, or with --against beside another tree of Vitrine."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import (
    batches,
    control,
    films,
    growth,
    increments,
    latency,
    loads,
    machine,
    quarantine,
    reads,
    reconciling,
    report,
    search,
    server,
    setup,
)
from bench.comparison import compare
from bench.comparison import report as comparison_report
from bench.comparison.interval import ENOUGH_ROUNDS
from bench.comparison.rounds import NEW, OLD
from bench.comparison.rows import Row, rows
from bench.measuring import Result, results_of, succeeded
from bench.setup import Setup
from bench.tree import ROOT, CommandFailed, Tree

Workload = Callable[[Setup], list[Result]]


def _overview(setup: Setup) -> list[Result]:
    from bench import overview  # the only rows that import the console

    return overview.beside_bare_queries(setup)


def _viewers(setup: Setup) -> list[Result]:
    from bench import viewers

    return viewers.twenty_pages(setup)


def _lineage(setup: Setup) -> list[Result]:
    from bench import lineage

    return [lineage.refreshed(setup)]


WORKLOADS: dict[str, Workload] = {
    "F1": lambda setup: [loads.first_load(setup)],
    "F2": lambda setup: [loads.refresh(setup)],
    "I1": lambda setup: [increments.changes(setup)],
    "A1": lambda setup: [increments.aggregate(setup)],
    "A2": reads.beside_bare_routes,
    "M1": films.film_dim,  # and M2, which runs the same pipeline again
    "T1": lambda setup: [loads.row_transform(setup)],
    "T2": lambda setup: [loads.frame_transform(setup)],
    "B1": batches.default_batch,
    "D1": reconciling.deep,  # and D2, which damages and repairs the same mart
    "Q1": lambda setup: [quarantine.rejects(setup)],
    "E1": search.documents,  # and E2, which damages and repairs the same index
    "S1": lambda setup: [latency.small_change(setup)],
    "G1": lambda setup: growth.ten_times(setup, large=False),
    "G2": growth.small_batches,
    "R1": lambda setup: [control.request_to_running(setup)],
    "R2": control.small_pipelines,
    "C1": _overview,
    "C2": _viewers,
    "C3": _lineage,
}

WITH_ANOTHER = {"M1": "M2", "D1": "D2", "E1": "E2"}
"""Workloads that measure a second row as well."""

PEER_ROWS = ("P1", "P2")
"""Measured with --peers: loads and changes beside movers of data, differences beside reladiff."""

ROUNDS = 3
"""Of the benchmark beside psql."""

FILE_WIDTH = 170
"""Columns of a table that is written to a file or a pipe."""


def main(
    scale: Annotated[
        float, typer.Option(min=0.001, help="Size of the data; 1 is two million ratings, with --against one million.")
    ] = 1.0,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help=f"Default: {ROUNDS}, with --against {ENOUGH_ROUNDS}.", show_default=False),
    ] = None,
    only: Annotated[str, typer.Option(help="Rows to measure, such as F1,I1; G1 alone takes ten times the rows.")] = "",
    peers: Annotated[
        bool, typer.Option("--peers", help="Measure dlt, ingestr, Sling and reladiff as well (P1, P2, S1).")
    ] = False,
    against: Annotated[
        Path | None, typer.Option(help="Folder of another tree with its own .venv; exit code 1 if this one is slower.")
    ] = None,
) -> None:
    """Measure Vitrine beside psql doing the same work by hand, or beside another tree of Vitrine."""
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    if against is None:
        if not measure_beside_psql(console, scale, rounds or ROUNDS, only, peers=peers):
            raise typer.Exit(1)
        return
    if peers:
        raise typer.BadParameter("--against compares two trees and measures no peers; leave out --peers")
    if not compare_trees(console, against, scale, rounds or ENOUGH_ROUNDS, only):
        raise typer.Exit(1)


def measure_beside_psql(console: Console, scale: float, rounds: int, only: str, *, peers: bool) -> bool:
    """True when no row is broken or wrong."""
    began = time.perf_counter()
    facts: dict[str, object] = {"scale": scale, "rounds": rounds}
    results: list[Result] = []
    workloads = chosen(only, peers=peers)
    if workloads:
        with setup.prepared(scale, rounds) as prepared:
            facts |= machine.facts(prepared.dst.connection)
            for name, workload in workloads.items():
                console.log(f"measuring {name}")
                results += results_of(name, lambda workload=workload: workload(prepared))
    if peers:
        from bench.peers import comparing, differences

        of_peers: dict[str, Workload] = {"P1": comparing.compare, "P2": differences.compare}

        with setup.prepared(scale, rounds, port=control.free_port()) as prepared:
            facts |= machine.facts(prepared.dst.connection)
            for name in chosen_peers(only):
                console.log(f"measuring {name}")
                results += results_of(name, lambda name=name: of_peers[name](prepared))
    console.print(report.table(results))
    _finish(console, facts, began)
    console.print(str(report.write(server.RESULTS, report.document(results, facts))))
    return succeeded(results)


def compare_trees(console: Console, against: Path, scale: float, rounds: int, only: str) -> bool:
    """True when no row fails, is wrong or is broken."""
    began = time.perf_counter()
    wanted = chosen_rows(only, scale)
    try:
        old, new = Tree.at(OLD, against), Tree.at(NEW, ROOT)
    except CommandFailed as exc:
        raise typer.BadParameter(str(exc)) from exc
    facts: dict[str, object] = {"scale": scale, "rounds": rounds, OLD: old.revision(), NEW: new.revision()}
    with compare.prepared(old, new) as comparer:
        facts |= machine.facts(comparer.server.admin)
        comparisons: list[compare.Comparison] = []
        for row in wanted:
            console.log(f"measuring {row.name}")
            comparisons.append(comparer.compare(row, rounds))
    console.print(comparison_report.table(comparisons))
    console.print(f"old: {facts[OLD]} in {old.folder}; new: {facts[NEW]} in {new.folder}", soft_wrap=True)
    _finish(console, facts, began)
    console.print(str(report.write(server.RESULTS, comparison_report.document(comparisons, facts))))
    for line in comparison_report.verdicts(comparisons, rounds):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    return comparison_report.succeeded(comparisons)


def chosen(only: str, *, peers: bool) -> dict[str, Workload]:
    wanted = _names(only, {*WORKLOADS, *WITH_ANOTHER.values(), *PEER_ROWS})
    if wanted == ["G1"]:
        return {"G1": lambda setup: growth.ten_times(setup, large=True)}
    # with the peers, S1 is measured beside ingestr
    return {
        name: workload
        for name, workload in WORKLOADS.items()
        if (not wanted or name in wanted or WITH_ANOTHER.get(name) in wanted) and not (peers and name == "S1")
    }


def chosen_peers(only: str) -> list[str]:
    """Those that are named, or all."""
    wanted = only.upper()
    return [row for row in PEER_ROWS if row in wanted] or list(PEER_ROWS)


def chosen_rows(only: str, scale: float) -> list[Row]:
    known = rows(scale)
    wanted = _names(only, {row.name for row in known})
    return [row for row in known if not wanted or row.name in wanted]


def _names(only: str, known: set[str]) -> list[str]:
    wanted = [name.strip().upper() for name in only.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        raise typer.BadParameter(f"unknown row {unknown[0]}; the rows are {', '.join(sorted(known))}")
    return wanted


def _finish(console: Console, facts: dict[str, object], began: float) -> None:
    """Add the duration and the load to the facts, and print them."""
    facts |= {"seconds": round(time.perf_counter() - began), "load_average_after": round(os.getloadavg()[0], 1)}
    console.print(
        f"{facts.get('cores')} cores, {facts.get('memory_gib')} GiB, PostgreSQL {facts.get('postgres')}, Python"
        f" {facts.get('python')}; scale {facts['scale']:g}, {facts['rounds']} rounds, {facts['seconds']} s in total;"
        f" load {facts.get('load_average_before')} before, {facts['load_average_after']} after",
        soft_wrap=True,
    )


if __name__ == "__main__":
    typer.run(main)
