"""`python -m bench`: run the workloads, print the table, write the JSON."""

import os
import socket
import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from bench import control, films, growth, increments, latency, loads, machine, report, stage
from bench.measuring import Result
from bench.stage import Stage

Workload = Callable[[Stage], list[Result]]

WORKLOADS: dict[str, Workload] = {
    "F1": lambda stage: [loads.first_load(stage)],
    "F2": lambda stage: [loads.refresh(stage)],
    "I1": lambda stage: [increments.changes(stage)],
    "A1": lambda stage: [increments.aggregate(stage)],
    "M1": films.film_dim,  # and M2, which runs it again
    "T1": lambda stage: [loads.row_transform(stage)],
    "T2": lambda stage: [loads.frame_transform(stage)],
    "S1": lambda stage: [latency.small_change(stage)],
    "G1": lambda stage: growth.ten_times(stage, large=False),
    "G2": growth.small_batches,
    "R1": lambda stage: [control.request_to_running(stage)],
    "R2": control.small_pipelines,
}


def main(
    scale: Annotated[float, typer.Option(min=0.001, help="1: two million ratings, 200 thousand films.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Turns each contestant takes.")] = 3,
    only: Annotated[str, typer.Option(help="Rows to measure, such as F1,I1; G1 alone takes ten times the rows.")] = "",
    peers: Annotated[bool, typer.Option("--peers", help="Measure dlt, ingestr and Sling as well (P1, S1).")] = False,
) -> None:
    """Measure Vitrine beside psql doing the same work by hand."""
    console = Console()
    began = time.perf_counter()
    facts: dict[str, object] = {"scale": scale, "rounds": rounds}
    results: list[Result] = []
    workloads = chosen(only, peers=peers)
    if workloads:
        with stage.set_up(scale, rounds) as prepared:
            facts |= machine.facts(prepared.dst.connection)
            for name, workload in workloads.items():
                console.log(f"measuring {name}")
                results += workload(prepared)
    if peers:
        from bench.peers import comparing

        with stage.set_up(scale, rounds, port=_free_port()) as prepared:
            facts |= machine.facts(prepared.dst.connection)
            console.log("measuring the peers")
            results += comparing.compare(prepared)
    console.print(report.table(results))
    facts |= {"seconds": round(time.perf_counter() - began), "load_average_after": os.getloadavg()[0]}
    path = report.write(stage.RESULTS, results, facts)
    console.print(f"{_machine_line(facts)}\n{path}")


def chosen(only: str, *, peers: bool) -> dict[str, Workload]:
    wanted = [name.strip().upper() for name in only.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in {*WORKLOADS, "M2", "P1"}]:
        raise typer.BadParameter(f"unknown row {unknown[0]}; there are: {', '.join(WORKLOADS)}")
    if wanted == ["G1"]:
        return {"G1": lambda stage: growth.ten_times(stage, large=True)}
    # with the peers, S1 is measured beside ingestr
    return {
        name: workload
        for name, workload in WORKLOADS.items()
        if (not wanted or name in wanted or (name == "M1" and "M2" in wanted)) and not (peers and name == "S1")
    }


def _machine_line(facts: dict[str, object]) -> str:
    return (
        f"{facts.get('cores')} cores, {facts.get('memory_gib')} GiB, PostgreSQL {facts.get('postgres')}, Python"
        f" {facts.get('python')}; scale {facts['scale']:g}, {facts['rounds']} rounds, {facts['seconds']} s in all;"
        f" load {facts.get('load_average_before')} before, {facts['load_average_after']} after"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    typer.run(main)
