"""I1 and A1: only the rows that changed since the last run."""

from dataclasses import replace

from bench import psql, ratings
from bench.beside import Workload, measure
from bench.loads import load_by_hand
from bench.measuring import Result, Samples, Verdict, seconds_of
from bench.setup import Setup
from bench.tree import Definition

INCREMENTAL: Definition = {
    "mode": "incremental",
    "incremental_key": "modified",
    "incremental_id_key": "id",
    "key_columns": ["id"],
}


def upsert_by_hand(setup: Setup, table: str, since: str, source: str = ratings.TABLE) -> None:
    """COPY to a temporary table, INSERT … ON CONFLICT."""
    psql.pipe(
        setup.src.url,
        f"COPY ({ratings.query(source)} WHERE modified > '{since}') TO STDOUT (FORMAT binary)",
        setup.dst.url,
        [
            f"CREATE TEMPORARY TABLE changed ({ratings.TYPES})",
            "COPY changed FROM STDIN (FORMAT binary)",
            f"INSERT INTO {table} SELECT * FROM changed ON CONFLICT (id) DO UPDATE SET {ratings.UPDATES}",
        ],
    )


def changes(setup: Setup) -> Result:
    target, table = "analytics.ratings_i1", "hand.ratings_i1"
    count = setup.ratings // 20
    definition = {"name": "changes_i1", "source_query": ratings.query(), "target_table": target, **INCREMENTAL}
    load_by_hand(setup, table)
    setup.between.apply_timed(definition)
    facts = {"first_load_seconds": setup.run(setup.between, "changes_i1")}
    since = ""

    def before(number: int) -> None:
        nonlocal since
        since = ratings.change(setup.src, count, seed=100 + number)
        setup.dst.execute(f"VACUUM ANALYZE {table}", f"VACUUM ANALYZE {target}")

    def equal() -> bool:
        expected = setup.src.digest(ratings.query())
        return all(setup.dst.digest(ratings.query(name)) == expected for name in (table, target))

    result = measure(
        setup,
        Workload(
            row="I1",
            title=f"{count:,} changed of {setup.ratings:,}, other database",
            at_most=1.45,
            before=before,
            by_hand=lambda: upsert_by_hand(setup, table, since),
            ours=lambda: setup.run(setup.between, "changes_i1"),
            equal=equal,
            facts=facts,
        ),
    )
    setup.dst.execute(f"DROP TABLE {table}, {target}")
    return result


def aggregate(setup: Setup) -> Result:
    target, table = "analytics.film_rating_agg", "hand.film_rating_agg"
    definition: Definition = {
        "name": "aggregate_a1",
        "source_query": ratings.aggregate(ratings.films_rated(">= $1")),
        "target_table": target,
        "mode": "incremental",
        "incremental_key": "modified",
        "incremental_id_key": "film_id",
        "key_columns": ["film_id"],
    }
    setup.mart.execute(
        f"CREATE TABLE {table} AS {ratings.aggregate()}", f"ALTER TABLE {table} ADD PRIMARY KEY (film_id)"
    )
    setup.inside.apply_timed(definition)
    setup.run(setup.inside, "aggregate_a1")
    since = ""
    whole: list[float] = []

    def before(number: int) -> None:
        nonlocal since
        since = ratings.add(setup.mart, 100, seed=200 + number)
        setup.mart.execute(f"VACUUM ANALYZE {table}", f"VACUUM ANALYZE {target}")

    def by_hand() -> None:
        changed = ratings.aggregate(ratings.films_rated(f"> '{since}'"))
        psql.run(setup.mart.url, _upsert(table, changed))

    def equal() -> bool:
        expected = setup.mart.digest(ratings.aggregate())
        right = all(setup.mart.digest(f"SELECT * FROM {name}") == expected for name in (table, target))
        whole.append(seconds_of(lambda: psql.run(setup.mart.url, _upsert(table, ratings.aggregate()))))
        return right

    result = measure(
        setup,
        Workload(
            row="A1",
            title=f"100 new ratings of {setup.ratings:,} refresh film_rating_agg ($1)",
            at_most=3,
            before=before,
            by_hand=by_hand,
            ours=lambda: setup.run(setup.inside, "aggregate_a1"),
            equal=equal,
        ),
    )
    return _beside_the_whole_aggregate(result, Samples(tuple(whole)))


def _upsert(table: str, query: str) -> str:
    return (
        f"INSERT INTO {table} {query} ON CONFLICT (film_id) DO UPDATE"
        " SET avg_rating = excluded.avg_rating, rating_count = excluded.rating_count, modified = excluded.modified"
    )


def _beside_the_whole_aggregate(result: Result, whole: Samples) -> Result:
    if result.ours is None:
        return result
    gain = whole.median / result.ours.median
    verdict = Verdict.MISSED if result.verdict is Verdict.MET and gain < 10 else result.verdict
    return replace(
        result,
        bar=f"{result.bar}, ≥ 10 × faster than all",
        verdict=verdict,
        note=f"{gain:.0f} × faster than aggregating all ({whole.median:.2f} s)",
        facts={**result.facts, "aggregating_all_seconds": whole.seconds},
    )
