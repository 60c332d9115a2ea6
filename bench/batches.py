"""B1: one batch of the default size, beside psql copying as many rows."""

from bench import psql, ratings
from bench.measuring import Result, Samples, Verdict, judge, ratio_of, seconds_of
from bench.setup import Setup
from bench.tree import Definition

ROWS = 50_000
"""Of a batch without transforms."""

AT_MOST_SECONDS = 0.3


def default_batch(setup: Setup) -> list[Result]:
    """The slowest batch of each run counts: of a simple mart, and of a query that sorts a larger table itself."""
    simple, count = f"{ratings.SCHEMA}.ratings_b1", 4 * ROWS
    ratings.create(setup.src, count, simple)
    sorting = f"{ratings.query()} ORDER BY id LIMIT {count}"
    results = [
        _measure(setup, ratings.query(simple), f"slowest batch of the default size ({ROWS:,} rows)"),
        _measure(setup, sorting, f"the same, of a query that sorts {setup.ratings:,} rows before the first", bar=False),
    ]
    setup.src.execute(f"DROP TABLE {simple}")
    return results


def _measure(setup: Setup, query: str, workload: str, *, bar: bool = True) -> Result:
    target, table = "analytics.ratings_b1", "hand.ratings_b1"
    definition: Definition = {
        "name": "batches_b1",
        "source_query": query,
        "target_table": target,
        "key_columns": ["id"],
    }
    ours: list[float] = []
    by_hand: list[float] = []
    right = True
    for _ in range(setup.rounds):
        setup.reset(setup.between, definition)
        setup.dst.execute(f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} ({ratings.TYPES})")
        by_hand.append(seconds_of(lambda: _copy_by_hand(setup, query, table)))
        setup.run(setup.between, definition["name"])
        ours.append(_slowest_batch(setup))
        right = right and setup.dst.digest(ratings.query(target)) == setup.src.digest(query)
    mine, hand = Samples(tuple(ours)), Samples(tuple(by_hand))
    setup.dst.execute(f"DROP TABLE {table}, {target}")
    verdict = judge(mine.median <= AT_MOST_SECONDS, right=right)
    return Result(
        row="B1",
        workload=f"{workload}; by hand: psql copies as many",
        bar=f"≤ {AT_MOST_SECONDS:g} s" if bar else "–",
        verdict=verdict if bar or not right else Verdict.INFORMATION,
        by_hand=hand,
        ours=mine,
        ratio=ratio_of(mine, hand),
    )


def _copy_by_hand(setup: Setup, query: str, table: str) -> None:
    psql.pipe(
        setup.src.url,
        f"COPY (SELECT * FROM ({query}) AS q ORDER BY id LIMIT {ROWS}) TO STDOUT (FORMAT binary)",
        setup.dst.url,
        [f"COPY {table} FROM STDIN (FORMAT binary)"],
    )


def _slowest_batch(setup: Setup) -> float:
    (row,) = setup.dst.fetch("SELECT slowest_batch_seconds AS seconds FROM etl.etl_runs ORDER BY id DESC LIMIT 1")
    return float(row["seconds"])
