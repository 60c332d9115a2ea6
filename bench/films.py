"""M1 and M2: the demo's film_dim inside one database, built and then run again with nothing changed."""

from dataclasses import replace
from importlib import resources
from typing import Any

import yaml

from bench import ours, psql
from bench.duel import Duel, digest, fight
from bench.measuring import Result, Verdict
from bench.stage import Stage
from vitrine.model import Pipeline
from vitrine.runner.executor import Executed

TARGET, TABLE = "analytics.film_dim", "hand.film_dim"


def film_dim(stage: Stage) -> list[Result]:
    document = _document()
    pipeline = ours.create(
        stage.mart,
        stage.mart_settings,
        name="film_dim",
        source_query=document["source_query"],
        target_table=TARGET,
        key_columns=document["key_columns"],
    )
    build = _build(stage, pipeline)
    again = _again(stage, pipeline)
    stage.mart.execute(f"DROP TABLE {TARGET}, {TABLE}")
    return [build, again]


def _build(stage: Stage, pipeline: Pipeline) -> Result:
    query = str(pipeline.definition.source_query)

    def before(number: int) -> None:
        stage.mart.execute(f"DROP TABLE IF EXISTS {TABLE}")
        ours.reset(stage.mart, stage.mart_settings, pipeline, TARGET)

    def by_hand() -> None:
        psql.run(
            stage.mart.url,
            f"CREATE TABLE {TABLE} AS {query} WITH NO DATA",
            f"ALTER TABLE {TABLE} ADD PRIMARY KEY (film_id)",
            _upsert(stage, query),
        )

    return fight(
        stage,
        Duel(
            row="M1",
            workload=f"film_dim, {stage.films:,} films, same database, first build",
            at_most=1.45,
            before=before,
            by_hand=by_hand,
            ours=lambda: ours.run(stage.mart, stage.mart_settings, pipeline),
            equal=lambda: _equal(stage, query),
        ),
    )


def _again(stage: Stage, pipeline: Pipeline) -> Result:
    query = str(pipeline.definition.source_query)
    runs: list[Executed] = []
    stage.mart.execute(f"VACUUM ANALYZE {TABLE}", f"VACUUM ANALYZE {TARGET}")
    statement = _upsert(stage, query, only_different=True)
    result = fight(
        stage,
        Duel(
            row="M2",
            workload="the same, run again, nothing changed",
            at_most=1.45,
            before=lambda number: None,
            by_hand=lambda: psql.run(stage.mart.url, statement),
            ours=lambda: runs.append(ours.run(stage.mart, stage.mart_settings, pipeline)),
            equal=lambda: _equal(stage, query),
        ),
    )
    written = sum(run.counts.written + run.counts.deleted for run in runs)
    # a row that somebody updated, deleted or merely locked carries the number of that transaction
    touched = stage.mart.number(f"SELECT count(*) FROM {TARGET} WHERE xmax <> 0")
    quiet = written == 0 and touched == 0
    return replace(
        result,
        bar=f"{result.bar}, 0 written or locked",
        verdict=result.verdict if quiet or result.verdict is Verdict.WRONG else Verdict.MISSED,
        note=f"{written} written, {touched} locked",
        facts={"rows_written": written, "rows_locked": touched},
    )


def _equal(stage: Stage, query: str) -> bool:
    seen = digest(stage.mart, query)
    return all(digest(stage.mart, f"SELECT * FROM {name}") == seen for name in (TABLE, TARGET))


def _upsert(stage: Stage, query: str, *, only_different: bool = False) -> str:
    described = stage.mart.connection.execute(f"SELECT * FROM ({query}) AS q LIMIT 0".encode()).description or []
    others = [column.name for column in described if column.name != "film_id"]
    assignments = ", ".join(f"{name} = excluded.{name}" for name in others)
    old, new = (", ".join(f"{side}.{name}" for name in others) for side in ("t", "excluded"))
    condition = f"WHERE ({old}) IS DISTINCT FROM ({new})" if only_different else ""
    return f"INSERT INTO {TABLE} AS t {query} ON CONFLICT (film_id) DO UPDATE SET {assignments} {condition}"


def _document() -> dict[str, Any]:
    text = resources.files("vitrine.demo").joinpath("pipelines/film_dim_full.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)
