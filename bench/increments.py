"""I1 and A1: what changed since the last run, and nothing else."""

from dataclasses import replace
from typing import Any

from bench import ours, psql, ratings
from bench.duel import Duel, digest, fight
from bench.loads import load_by_hand
from bench.measuring import Result, Samples, Verdict, seconds_of
from bench.stage import Stage
from vitrine.model import Pipeline

INCREMENTAL: dict[str, Any] = {
    "mode": "incremental",
    "incremental_key": "modified",
    "incremental_id_key": "id",
    "key_columns": ["id"],
}


def pipeline_of_changes(stage: Stage, name: str, target: str, query: str = ratings.QUERY) -> Pipeline:
    return ours.create(stage.dst, stage.settings, name=name, source_query=query, target_table=target, **INCREMENTAL)


def upsert_by_hand(stage: Stage, table: str, since: str, source: str = "ugc.ratings") -> None:
    """COPY to a temporary table, INSERT … ON CONFLICT."""
    psql.pipe(
        stage.src.url,
        f"COPY (SELECT {ratings.COLUMNS} FROM {source} WHERE modified > '{since}') TO STDOUT (FORMAT binary)",
        stage.dst.url,
        [
            f"CREATE TEMPORARY TABLE changed ({ratings.TYPES})",
            "COPY changed FROM STDIN (FORMAT binary)",
            f"INSERT INTO {table} SELECT * FROM changed ON CONFLICT (id) DO UPDATE SET {ratings.UPDATES}",
        ],
    )


def changes(stage: Stage) -> Result:
    target, table = "analytics.ratings_i1", "hand.ratings_i1"
    count = stage.ratings // 20
    pipeline = pipeline_of_changes(stage, "changes_i1", target)
    load_by_hand(stage, table)
    facts = {"first_load_seconds": seconds_of(lambda: ours.run(stage.dst, stage.settings, pipeline))}
    since = ""

    def before(number: int) -> None:
        nonlocal since
        since = ratings.change(stage.src, count, seed=100 + number)
        stage.dst.execute(f"VACUUM ANALYZE {table}", f"VACUUM ANALYZE {target}")

    def equal() -> bool:
        seen = digest(stage.src, ratings.QUERY)
        return all(digest(stage.dst, f"SELECT {ratings.COLUMNS} FROM {name}") == seen for name in (table, target))

    result = fight(
        stage,
        Duel(
            row="I1",
            workload=f"{count:,} changed of {stage.ratings:,}, other database",
            at_most=1.45,
            before=before,
            by_hand=lambda: upsert_by_hand(stage, table, since),
            ours=lambda: ours.run(stage.dst, stage.settings, pipeline),
            equal=equal,
            facts=facts,
        ),
    )
    stage.dst.execute(f"DROP TABLE {table}, {target}")
    return result


_AGGREGATE = """
    SELECT film_id, round(avg(rating), 2)::numeric(4, 2) AS avg_rating, count(*) AS rating_count,
           max(modified) AS modified
      FROM ugc.ratings {restriction} GROUP BY film_id
"""
_TOUCHED = "WHERE film_id IN (SELECT film_id FROM ugc.ratings WHERE modified {after})"
_UPSERT = """
    INSERT INTO hand.film_rating_agg {query} ON CONFLICT (film_id) DO UPDATE
       SET avg_rating = excluded.avg_rating, rating_count = excluded.rating_count, modified = excluded.modified
"""


def aggregate(stage: Stage) -> Result:
    target, table = "analytics.film_rating_agg", "hand.film_rating_agg"
    everything = _AGGREGATE.format(restriction="")
    pipeline = ours.create(
        stage.mart,
        stage.mart_settings,
        name="aggregate_a1",
        source_query=_AGGREGATE.format(restriction=_TOUCHED.format(after=">= $1")),
        target_table=target,
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="film_id",
        key_columns=["film_id"],
    )
    stage.mart.execute(f"CREATE TABLE {table} AS {everything}", f"ALTER TABLE {table} ADD PRIMARY KEY (film_id)")
    ours.run(stage.mart, stage.mart_settings, pipeline)
    since = ""
    whole: list[float] = []

    def before(number: int) -> None:
        nonlocal since
        since = ratings.add(stage.mart, 100, seed=200 + number)
        stage.mart.execute("VACUUM ANALYZE ugc.ratings", f"VACUUM ANALYZE {table}", f"VACUUM ANALYZE {target}")

    def by_hand() -> None:
        touched = _AGGREGATE.format(restriction=_TOUCHED.format(after=f"> '{since}'"))
        psql.run(stage.mart.url, _UPSERT.format(query=touched))

    def equal() -> bool:
        seen = digest(stage.mart, everything)
        right = all(digest(stage.mart, f"SELECT * FROM {name}") == seen for name in (table, target))
        whole.append(seconds_of(lambda: psql.run(stage.mart.url, _UPSERT.format(query=everything))))
        return right

    result = fight(
        stage,
        Duel(
            row="A1",
            workload=f"100 new ratings of {stage.ratings:,} refresh film_rating_agg ($1)",
            at_most=3,
            before=before,
            by_hand=by_hand,
            ours=lambda: ours.run(stage.mart, stage.mart_settings, pipeline),
            equal=equal,
        ),
    )
    return _beside_aggregating_all(result, Samples(tuple(whole)))


def _beside_aggregating_all(result: Result, whole: Samples) -> Result:
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
