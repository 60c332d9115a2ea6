"""`python -m bench`: run the workloads, print the table, write the JSON."""

import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from bench import films, growth, increments, latency, loads, machine, report, stage
from bench.measuring import Result
from bench.stage import Stage

WORKLOADS: dict[str, Callable[[Stage], list[Result]]] = {
    "F1": lambda stage: [loads.first_load(stage)],
    "F2": lambda stage: [loads.refresh(stage)],
    "I1": lambda stage: [increments.changes(stage)],
    "A1": lambda stage: [increments.aggregate(stage)],
    "M1": films.film_dim,
    "T1": lambda stage: [loads.row_transform(stage)],
    "T2": lambda stage: [loads.frame_transform(stage)],
    "S1": lambda stage: [latency.small_change(stage)],
    "G1": lambda stage: growth.ten_times(stage, large=False),
    "G2": growth.small_batches,
}


def main(
    scale: Annotated[float, typer.Option(min=0.001, help="1: two million ratings, 200 thousand films.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Turns each contestant takes.")] = 3,
    only: Annotated[str, typer.Option(help="Rows to measure, such as F1,I1.")] = "",
) -> None:
    console = Console()
    wanted = [name.strip().upper() for name in only.split(",") if name.strip()] or list(WORKLOADS)
    began = time.perf_counter()
    with stage.set_up(scale, rounds) as prepared:
        console.print(f"data ready after {time.perf_counter() - began:.0f} s")
        facts = {**machine.facts(prepared.dst.connection), "scale": scale, "rounds": rounds}
        results: list[Result] = []
        for name in wanted:
            console.log(f"measuring {name}")
            results += WORKLOADS[name](prepared)
    console.print(report.table(results))
    path = report.write(stage.RESULTS, results, {**facts, "seconds": round(time.perf_counter() - began)})
    console.print(f"{path}; {time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    typer.run(main)
