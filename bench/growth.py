"""G1 and G2: what ten times the rows and small batches cost; the platform is compared with itself."""

from collections.abc import Callable
from typing import Any

from bench import child, ours, ratings
from bench.child import Told
from bench.duel import digest
from bench.increments import INCREMENTAL, upsert_by_hand
from bench.loads import load_by_hand
from bench.measuring import Result, Samples, Verdict, judge, ratio_of, seconds_of
from bench.stage import Stage

TIME_BAR, GAIN_MB = 11, 20
LIMITS_MB = {"copy": 120, "rows": 250}

SMALL, LARGE = "ugc.ratings_small", "ugc.ratings_large"
FULL: dict[str, Any] = {"key_columns": ["id"]}


def ten_times(stage: Stage, *, large: bool) -> list[Result]:
    """200 thousand and 2 million ratings at scale 1; `large` makes it 2 and 20 million."""
    many = stage.ratings * (10 if large else 1)
    _make(stage, SMALL, many // 10)
    _make(stage, LARGE, many)
    label = f"{many // 10:,} → {many:,} ratings"
    copied = _compare(stage, "F1", FULL, changed=False)
    changed = _compare(stage, "I1", INCREMENTAL, changed=True)
    rows = _compare(stage, "T1", {**FULL, "python_task": "bench_raise_score"}, changed=False)
    stage.src.execute(f"DROP TABLE {SMALL}, {LARGE}")
    return [
        _time(f"F1, {label}", copied),
        _time(f"I1, {label}, 5 % changed", changed),
        _memory("F1, copy lane", "copy", copied),
        _memory("I1, copy lane", "copy", changed),
        _memory("T1, rows lane", "rows", rows),
    ]


class _Measured:
    """The same work on the small and on the large table."""

    def __init__(self) -> None:
        self.small: list[Told] = []
        self.large: list[Told] = []
        self.by_hand: dict[str, list[float]] = {SMALL: [], LARGE: []}  # not of transforms
        self.right = True

    def seconds(self) -> tuple[Samples, Samples]:
        small, large = (tuple(told.seconds for told in runs) for runs in (self.small, self.large))
        return Samples(small), Samples(large)

    def peaks(self) -> tuple[float, float]:
        return max(told.peak_mb for told in self.small), max(told.peak_mb for told in self.large)


def _make(stage: Stage, table: str, count: int) -> None:
    """As many ratings as asked for: a part of the cinema's, or several of each under new keys."""
    copies = -(-count // stage.ratings)
    stage.src.execute(
        f"DROP TABLE IF EXISTS {table}",
        f"""
        CREATE TABLE {table} AS
        SELECT CASE WHEN copy = 0 THEN id ELSE md5(id::text || copy)::uuid END AS id, user_id, film_id, rating, created, modified
          FROM ugc.ratings CROSS JOIN generate_series(0, {copies - 1}) AS copy LIMIT {count}
        """,  # noqa: E501
        f"ALTER TABLE {table} ADD PRIMARY KEY (id)",
        f"CREATE INDEX ON {table} (modified, id)",
        f"VACUUM ANALYZE {table}",
    )


def _compare(stage: Stage, kind: str, fields: dict[str, Any], *, changed: bool) -> _Measured:
    measured = _Measured()
    for table, told in ((SMALL, measured.small), (LARGE, measured.large)):
        query = f"SELECT {ratings.COLUMNS} FROM {table}"
        size = table.rpartition("_")[2]
        name, target = f"g1_{kind.lower()}_{size}", f"analytics.g1_{kind.lower()}_{size}"
        pipeline = ours.create(stage.dst, stage.settings, name=name, source_query=query, target_table=target, **fields)
        hand = f"hand.g1_{size}"
        if changed:
            load_by_hand(stage, hand, query)
            ours.run(stage.dst, stage.settings, pipeline)
        # transforms are slow and only their memory is of interest here
        for number in range(1 if "python_task" in fields else stage.rounds):
            if changed:
                count = stage.src.number(f"SELECT count(*) FROM {table}") // 20
                since = ratings.change(stage.src, count, number, table)
                stage.dst.execute(f"VACUUM ANALYZE {target}", f"VACUUM ANALYZE {hand}", "CHECKPOINT")
                measured.by_hand[table].append(seconds_of(_upsert(stage, hand, since, table)))
            else:
                ours.reset(stage.dst, stage.settings, pipeline, target)
            if not changed and "python_task" not in fields:
                stage.dst.execute(f"DROP TABLE IF EXISTS {hand}", "CHECKPOINT")
                measured.by_hand[table].append(seconds_of(_load(stage, hand, query)))
            stage.calm()
            told.append(child.run(stage.settings, name))
        expected = query.replace(" rating,", " (rating + 1)::smallint AS rating,") if "python_task" in fields else query
        written = f"SELECT {ratings.COLUMNS} FROM {target}"
        measured.right &= digest(stage.src, expected) == digest(stage.dst, written)
        stage.dst.execute(f"DROP TABLE {target}", f"DROP TABLE IF EXISTS {hand}")
    return measured


def _load(stage: Stage, table: str, query: str) -> Callable[[], None]:
    return lambda: load_by_hand(stage, table, query)


def _upsert(stage: Stage, table: str, since: str, source: str) -> Callable[[], None]:
    return lambda: upsert_by_hand(stage, table, since, source)


def _time(label: str, measured: _Measured) -> Result:
    small, large = measured.seconds()
    ratio = ratio_of(large, small)
    hands = [Samples(tuple(taken)) for taken in measured.by_hand.values() if taken]
    growth = f"; by hand {ratio_of(hands[1], hands[0]):.1f} ×" if hands else ""
    return Result(
        row="G1",
        workload=label,
        bar=f"≤ {TIME_BAR} × the time",
        verdict=judge(ratio, TIME_BAR, right=measured.right),
        ours=large,
        ratio=ratio,
        note=f"a tenth takes {small}{growth}",
        facts={"small_seconds": small.seconds, "by_hand_seconds": [hand.seconds for hand in hands]},
    )


def _memory(label: str, lane: str, measured: _Measured) -> Result:
    small, large = measured.peaks()
    met = large - small <= GAIN_MB and large < LIMITS_MB[lane]
    return Result(
        row="G1",
        workload=f"peak memory: {label}",
        bar=f"< {LIMITS_MB[lane]} MB, +{GAIN_MB} MB",
        verdict=Verdict.WRONG if not measured.right else Verdict.MET if met else Verdict.MISSED,
        note=f"{large:.0f} MB, {large - small:+.0f} MB",
        facts={"small_mb": small, "large_mb": large},
    )


_AGGREGATE = """
    SELECT film_id, round(avg(rating), 2)::numeric(4, 2) AS avg_rating, count(*) AS rating_count
      FROM ugc.ratings GROUP BY film_id
"""


def small_batches(stage: Stage) -> list[Result]:
    return [
        _batch_sizes(stage, "F1", ratings.QUERY, "id"),
        _batch_sizes(stage, "aggregate reader", _AGGREGATE, "film_id"),
    ]


def _batch_sizes(stage: Stage, label: str, query: str, key: str) -> Result:
    word = label.split()[0].lower()
    seconds: dict[int, list[float]] = {50_000: [], 1_000: []}
    right = True
    for number in range(stage.rounds):
        for size, taken in list(seconds.items())[:: 1 if number % 2 == 0 else -1]:
            target = f"analytics.g2_{word}_{size}_{number}"
            pipeline = ours.create(
                stage.dst,
                stage.settings,
                name=target.partition(".")[2],
                source_query=query,
                target_table=target,
                key_columns=[key],
                batch_size=size,
            )
            stage.calm()
            taken.append(seconds_of(_runner(stage, pipeline)))
            right &= digest(stage.src, query) == digest(stage.dst, f"SELECT * FROM {target}")
            stage.dst.execute(f"DROP TABLE {target}")
    large, small = (Samples(tuple(taken)) for taken in seconds.values())
    ratio = ratio_of(small, large)
    return Result(
        row="G2",
        workload=f"batch_size 1,000 instead of 50,000: {label}",
        bar="≤ 2 × the time",
        verdict=judge(ratio, 2, right=right),
        ours=small,
        ratio=ratio,
        note=f"batches of 50,000 take {large}",
        facts={"large_batches_seconds": large.seconds},
    )


def _runner(stage: Stage, pipeline: Any) -> Callable[[], object]:
    return lambda: ours.run(stage.dst, stage.settings, pipeline)
