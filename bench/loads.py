"""F1, F2, T1, T2: the whole table of ratings into another database."""

import importlib.util

from bench import psql, ratings
from bench.beside import Workload, measure
from bench.measuring import Result, Verdict
from bench.setup import Setup
from bench.tree import Definition


def load_by_hand(setup: Setup, table: str, source: str = ratings.TABLE) -> None:
    """Binary COPY into a bare table, then the key."""
    psql.pipe(
        setup.src.url,
        f"COPY ({ratings.query(source)}) TO STDOUT (FORMAT binary)",
        setup.dst.url,
        [
            f"CREATE TABLE {table} ({ratings.TYPES})",
            f"COPY {table} FROM STDIN (FORMAT binary)",
            f"ALTER TABLE {table} ADD PRIMARY KEY (id)",
        ],
    )


def first_load(setup: Setup) -> Result:
    return _first_load(setup, "F1", f"first full load, {setup.ratings:,} ratings, other database", 1.4)


def row_transform(setup: Setup) -> Result:
    return _first_load(setup, "T1", "F1 with one row transform", 8, task="bench_raise_score")


def frame_transform(setup: Setup) -> Result:
    title = "F1 with one frame transform (polars)"
    if importlib.util.find_spec("polars") is None:
        return Result("T2", title, "≤ 2.5", Verdict.ABSENT, note="polars is not installed")
    return _first_load(setup, "T2", title, 2.5, task="bench_raise_score_frame")


def _first_load(setup: Setup, row: str, title: str, at_most: float, task: str | None = None) -> Result:
    target, table = f"analytics.ratings_{row.lower()}", f"hand.ratings_{row.lower()}"
    definition: Definition = {
        "name": f"load_{row.lower()}",
        "source_query": ratings.query(),
        "target_table": target,
        "key_columns": ["id"],
        **({"python_task": task} if task else {}),
    }
    expected = {
        table: setup.src.digest(ratings.query()),
        target: setup.src.digest(ratings.raised_query() if task else ratings.query()),
    }

    def before(number: int) -> None:
        setup.dst.execute(f"DROP TABLE IF EXISTS {table}")
        setup.reset(setup.between, definition)

    result = measure(
        setup,
        Workload(
            row=row,
            title=title,
            at_most=at_most,
            before=before,
            by_hand=lambda: load_by_hand(setup, table),
            ours=lambda: setup.run(setup.between, definition["name"]),
            equal=lambda: all(setup.dst.digest(ratings.query(name)) == digest for name, digest in expected.items()),
        ),
    )
    setup.dst.execute(f"DROP TABLE {table}, {target}")
    return result


def refresh(setup: Setup) -> Result:
    target, table = "analytics.ratings_f2", "hand.ratings_f2"
    definition: Definition = {
        "name": "refresh_f2",
        "source_query": ratings.query(),
        "target_table": target,
        "key_columns": ["id"],
    }
    load_by_hand(setup, table)
    setup.between.apply_timed(definition)
    setup.run(setup.between, definition["name"])

    def before(number: int) -> None:
        ratings.change(setup.src, setup.ratings // 100, seed=number)
        ratings.delete(setup.src, setup.ratings // 1000, seed=1000 + number)
        setup.dst.execute(f"VACUUM ANALYZE {table}", f"VACUUM ANALYZE {target}")

    def equal() -> bool:
        expected = setup.src.digest(ratings.query())
        return all(setup.dst.digest(ratings.query(name)) == expected for name in (table, target))

    result = measure(
        setup,
        Workload(
            row="F2",
            title="full refresh of it, 1 % changed, 0.1 % deleted",
            at_most=1.35,
            before=before,
            by_hand=lambda: _refresh_by_hand(setup, table),
            ours=lambda: setup.run(setup.between, definition["name"]),
            equal=equal,
        ),
    )
    setup.dst.execute(f"DROP TABLE {table}, {target}")
    return result


def _refresh_by_hand(setup: Setup, table: str) -> None:
    """COPY to staging, key, one transaction that applies the difference."""
    others = "user_id, film_id, score, created, modified"
    assignments = ", ".join(f"{name} = s.{name}" for name in others.split(", "))
    psql.pipe(
        setup.src.url,
        f"COPY ({ratings.query()}) TO STDOUT (FORMAT binary)",
        setup.dst.url,
        [
            f"CREATE TABLE hand.staging ({ratings.TYPES})",
            "COPY hand.staging FROM STDIN (FORMAT binary)",
            "ALTER TABLE hand.staging ADD PRIMARY KEY (id)",
            "ANALYZE hand.staging",
            f"""
            BEGIN;
            DELETE FROM {table} AS t WHERE NOT EXISTS (SELECT FROM hand.staging AS s WHERE s.id = t.id);
            UPDATE {table} AS t SET {assignments} FROM hand.staging AS s
             WHERE t.id = s.id AND (t.user_id, t.film_id, t.score, t.created, t.modified)
                   IS DISTINCT FROM (s.user_id, s.film_id, s.score, s.created, s.modified);
            INSERT INTO {table} SELECT s.* FROM hand.staging AS s
             WHERE NOT EXISTS (SELECT FROM {table} AS t WHERE t.id = s.id);
            DROP TABLE hand.staging;
            COMMIT
            """,
        ],
    )
