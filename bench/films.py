"""M1 and M2: film_dim inside one database, built once and then run again with nothing changed."""

from dataclasses import replace

from bench import psql
from bench.beside import Workload, measure
from bench.catalogue import FILM_COLUMNS, FILM_DIM
from bench.measuring import Result, Verdict
from bench.run_requests import newest_run
from bench.setup import Setup
from bench.tree import Definition

TARGET, TABLE = "analytics.film_dim", "hand.film_dim"

DEFINITION: Definition = {
    "name": "film_dim",
    "source_query": FILM_DIM,
    "target_table": TARGET,
    "key_columns": ["film_id"],
}


def film_dim(setup: Setup) -> list[Result]:
    build = _build(setup)
    again = _again(setup)
    setup.mart.execute(f"DROP TABLE {TARGET}, {TABLE}")
    return [build, again]


def _build(setup: Setup) -> Result:
    def before(number: int) -> None:
        setup.mart.execute(f"DROP TABLE IF EXISTS {TABLE}")
        setup.reset(setup.inside, DEFINITION)

    def by_hand() -> None:
        psql.run(
            setup.mart.url,
            f"CREATE TABLE {TABLE} AS {FILM_DIM} WITH NO DATA",
            f"ALTER TABLE {TABLE} ADD PRIMARY KEY (film_id)",
            _upsert(),
        )

    return measure(
        setup,
        Workload(
            row="M1",
            title=f"film_dim, {setup.films:,} films, same database, first build",
            at_most=1.45,
            before=before,
            by_hand=by_hand,
            ours=lambda: setup.run(setup.inside, "film_dim"),
            equal=lambda: _equal(setup),
        ),
    )


def _again(setup: Setup) -> Result:
    setup.mart.execute(f"VACUUM ANALYZE {TABLE}", f"VACUUM ANALYZE {TARGET}")
    last = newest_run(setup.mart)
    result = measure(
        setup,
        Workload(
            row="M2",
            title="the same, run again, nothing changed",
            at_most=1.45,
            before=lambda number: None,
            by_hand=lambda: psql.run(setup.mart.url, _upsert(only_different=True)),
            ours=lambda: setup.run(setup.inside, "film_dim"),
            equal=lambda: _equal(setup),
        ),
    )
    written = setup.mart.number(
        "SELECT sum(r.rows_written + r.rows_deleted) FROM etl.etl_runs AS r"
        "  JOIN etl.etl_pipelines AS p ON p.id = r.pipeline_id WHERE p.name = 'film_dim' AND r.id > %s",
        [last],
    )
    # xmax is the transaction that updated, deleted or locked the row
    locked = setup.mart.number(f"SELECT count(*) FROM {TARGET} WHERE xmax <> 0")
    untouched = written == 0 and locked == 0
    return replace(
        result,
        bar=f"{result.bar}, 0 written or locked",
        verdict=result.verdict if untouched or result.verdict is Verdict.WRONG else Verdict.MISSED,
        note=f"{written} written, {locked} locked",
        facts={"rows_written": written, "rows_locked": locked},
    )


def _equal(setup: Setup) -> bool:
    expected = setup.mart.digest(FILM_DIM)
    return all(setup.mart.digest(f"SELECT {FILM_COLUMNS} FROM {name}") == expected for name in (TABLE, TARGET))


def _upsert(*, only_different: bool = False) -> str:
    others = [name for name in FILM_COLUMNS.split(", ") if name != "film_id"]
    assignments = ", ".join(f"{name} = excluded.{name}" for name in others)
    old, new = (", ".join(f"{side}.{name}" for name in others) for side in ("t", "excluded"))
    condition = f"WHERE ({old}) IS DISTINCT FROM ({new})" if only_different else ""
    return f"INSERT INTO {TABLE} AS t {FILM_DIM} ON CONFLICT (film_id) DO UPDATE SET {assignments} {condition}"
