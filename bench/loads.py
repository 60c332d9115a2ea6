"""F1, F2, T1, T2: the whole table of ratings into another database."""

import importlib.util

from bench import ours, psql, ratings
from bench.duel import Duel, digest, fight
from bench.measuring import Result, Verdict
from bench.stage import Stage

RAISED = "SELECT id, user_id, film_id, (rating + 1)::smallint AS rating, created, modified FROM ugc.ratings"

_COPY_OUT = f"COPY ({ratings.QUERY}) TO STDOUT (FORMAT binary)"


def load_by_hand(stage: Stage, table: str, query: str = ratings.QUERY) -> None:
    """Binary COPY into a bare table, then the key."""
    psql.pipe(
        stage.src.url,
        f"COPY ({query}) TO STDOUT (FORMAT binary)",
        stage.dst.url,
        [
            f"CREATE TABLE {table} ({ratings.TYPES})",
            f"COPY {table} FROM STDIN (FORMAT binary)",
            f"ALTER TABLE {table} ADD PRIMARY KEY (id)",
        ],
    )


def first_load(stage: Stage) -> Result:
    return _first_load(stage, "F1", f"first full load, {stage.ratings:,} ratings, other database", 1.4)


def row_transform(stage: Stage) -> Result:
    return _first_load(stage, "T1", "F1 with one row transform", 8, task="bench_raise_score")


def frame_transform(stage: Stage) -> Result:
    workload = "F1 with one frame transform (polars)"
    if importlib.util.find_spec("polars") is None:
        return Result("T2", workload, "≤ 2.5", Verdict.ABSENT, note="polars is not installed")
    return _first_load(stage, "T2", workload, 2.5, task="bench_raise_score_frame")


def _first_load(stage: Stage, row: str, workload: str, at_most: float, task: str | None = None) -> Result:
    target, table = f"analytics.ratings_{row.lower()}", f"hand.ratings_{row.lower()}"
    pipeline = ours.create(
        stage.dst,
        stage.settings,
        name=f"load_{row.lower()}",
        source_query=ratings.QUERY,
        python_task=task,
        target_table=target,
        key_columns=["id"],
    )
    expected = {table: digest(stage.src, ratings.QUERY), target: digest(stage.src, RAISED if task else ratings.QUERY)}

    def before(number: int) -> None:
        stage.dst.execute(f"DROP TABLE IF EXISTS {table}")
        ours.reset(stage.dst, stage.settings, pipeline, target)

    result = fight(
        stage,
        Duel(
            row=row,
            workload=workload,
            at_most=at_most,
            before=before,
            by_hand=lambda: load_by_hand(stage, table),
            ours=lambda: ours.run(stage.dst, stage.settings, pipeline),
            equal=lambda: all(
                digest(stage.dst, f"SELECT {ratings.COLUMNS} FROM {name}") == seen for name, seen in expected.items()
            ),
        ),
    )
    stage.dst.execute(f"DROP TABLE {table}, {target}")
    return result


def refresh(stage: Stage) -> Result:
    target, table = "analytics.ratings_f2", "hand.ratings_f2"
    pipeline = ours.create(
        stage.dst,
        stage.settings,
        name="refresh_f2",
        source_query=ratings.QUERY,
        target_table=target,
        key_columns=["id"],
    )
    load_by_hand(stage, table)
    ours.run(stage.dst, stage.settings, pipeline)

    def before(number: int) -> None:
        ratings.change(stage.src, stage.ratings // 100, seed=number)
        ratings.delete(stage.src, stage.ratings // 1000, seed=1000 + number)
        stage.dst.execute(f"VACUUM ANALYZE {table}", f"VACUUM ANALYZE {target}")

    def equal() -> bool:
        seen = digest(stage.src, ratings.QUERY)
        return all(digest(stage.dst, f"SELECT {ratings.COLUMNS} FROM {name}") == seen for name in (table, target))

    result = fight(
        stage,
        Duel(
            row="F2",
            workload="full refresh of it, 1 % changed, 0.1 % deleted",
            at_most=1.35,
            before=before,
            by_hand=lambda: _refresh_by_hand(stage, table),
            ours=lambda: ours.run(stage.dst, stage.settings, pipeline),
            equal=equal,
        ),
    )
    stage.dst.execute(f"DROP TABLE {table}, {target}")
    return result


def _refresh_by_hand(stage: Stage, table: str) -> None:
    """COPY to staging, key, one transaction that applies the difference."""
    others = "user_id, film_id, rating, created, modified"
    assignments = ", ".join(f"{name} = s.{name}" for name in others.split(", "))
    psql.pipe(
        stage.src.url,
        _COPY_OUT,
        stage.dst.url,
        [
            f"CREATE TABLE hand.staging ({ratings.TYPES})",
            "COPY hand.staging FROM STDIN (FORMAT binary)",
            "ALTER TABLE hand.staging ADD PRIMARY KEY (id)",
            "ANALYZE hand.staging",
            f"""
            BEGIN;
            DELETE FROM {table} AS t WHERE NOT EXISTS (SELECT FROM hand.staging AS s WHERE s.id = t.id);
            UPDATE {table} AS t SET {assignments} FROM hand.staging AS s
             WHERE t.id = s.id AND (t.user_id, t.film_id, t.rating, t.created, t.modified)
                   IS DISTINCT FROM (s.user_id, s.film_id, s.rating, s.created, s.modified);
            INSERT INTO {table} SELECT s.* FROM hand.staging AS s
             WHERE NOT EXISTS (SELECT FROM {table} AS t WHERE t.id = s.id);
            DROP TABLE hand.staging;
            COMMIT
            """,
        ],
    )
