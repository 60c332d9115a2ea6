"""Q1: a load in which every tenth row is quarantined, beside the same load without rejects."""

from bench import ratings
from bench.measuring import Result, Samples, judge, ratio_of, turns
from bench.setup import Setup
from bench.tree import Definition

A_TENTH = "id < '1a000000-0000-0000-0000-000000000000'"
AT_MOST = 2.0


def rejects(setup: Setup) -> Result:
    """Scores are 1 to 10; a column of one digit rejects the tens, one of two digits takes them all."""
    query = f"{ratings.query()} WHERE {A_TENTH}"
    loads = {digits: _definition(query, digits) for digits in (2, 1)}
    seconds: dict[int, list[float]] = {2: [], 1: []}
    fitting = f"{query} AND score < 10"
    right = True
    for _, wide_first in turns(setup.rounds):
        for digits in (2, 1) if wide_first else (1, 2):
            definition = loads[digits]
            setup.reset(setup.between, definition)
            types = ratings.TYPES.replace("score smallint", f"score numeric({digits})")
            setup.dst.execute(f"CREATE TABLE {definition['target_table']} ({types}, PRIMARY KEY (id))")
            seconds[digits].append(setup.run(setup.between, definition["name"]))
        stored = [_stored(setup, loads[digits]["target_table"]) for digits in (2, 1)]
        right = right and stored == [setup.src.digest(query), setup.src.digest(fitting)]
    without, with_rejects = (Samples(tuple(seconds[digits])) for digits in (2, 1))
    ratio = ratio_of(with_rejects, without)
    return Result(
        row="Q1",
        workload=f"load of {setup.ratings // 10:,} ratings, every tenth is quarantined; by hand: without rejects",
        bar=f"≤ {AT_MOST:g} × the time",
        verdict=judge(ratio <= AT_MOST, right=right),
        by_hand=without,
        ours=with_rejects,
        ratio=ratio,
    )


def _definition(query: str, digits: int) -> Definition:
    return {
        "name": f"quarantine_{digits}",
        "source_query": query,
        "target_table": f"analytics.ratings_q{digits}",
        "key_columns": ["id"],
        "options": {"on_reject": "quarantine", "max_rejects": 1_000_000},
    }


def _stored(setup: Setup, table: str) -> object:
    return setup.dst.digest(ratings.query(table).replace("score,", "score::smallint AS score,"))
