"""G1 and G2: the cost of ten times the rows and of small batches; Vitrine is compared with itself."""

from bench import ratings
from bench.increments import INCREMENTAL, upsert_by_hand
from bench.loads import load_by_hand
from bench.measuring import Result, Samples, judge, ratio_of, seconds_of, turns
from bench.setup import Setup
from bench.tree import Definition, Measurement

TIME_BAR, GAIN_MB = 11, 20
LIMITS_MB = {"copy": 120, "rows": 250}
DEFAULT_BATCH, SMALL_BATCH, BATCH_BAR = 50_000, 1_000, 2

SMALL, LARGE = "bench.ratings_small", "bench.ratings_large"
FULL: Definition = {"key_columns": ["id"]}


def ten_times(setup: Setup, *, large: bool) -> list[Result]:
    """200 thousand and 2 million ratings at scale 1; with `large`, 2 and 20 million."""
    many = setup.ratings * (10 if large else 1)
    ratings.create(setup.src, many // 10, SMALL)
    ratings.create(setup.src, many, LARGE)
    label = f"{many // 10:,} → {many:,} ratings"
    copied = _compare(setup, "F1", FULL)
    changed = _compare(setup, "I1", INCREMENTAL)
    rows = _compare(setup, "T1", {**FULL, "python_task": "bench_raise_score"})
    setup.src.execute(f"DROP TABLE {SMALL}, {LARGE}")
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
        self.ours: dict[str, list[Measurement]] = {SMALL: [], LARGE: []}
        self.by_hand: dict[str, list[float]] = {SMALL: [], LARGE: []}  # empty for transforms
        self.right = True

    def seconds(self, table: str) -> Samples:
        return Samples(tuple(one.seconds for one in self.ours[table]))

    def peak(self, table: str) -> float:
        return max(one.peak_mb or 0 for one in self.ours[table])


def _compare(setup: Setup, kind: str, fields: Definition) -> _Measured:
    measured = _Measured()
    for table in (SMALL, LARGE):
        name = f"g1_{kind.lower()}_{table.rpartition('_')[2]}"
        definition = {
            "name": name,
            "source_query": ratings.query(table),
            "target_table": f"analytics.{name}",
            **fields,
        }
        hand = f"hand.{name}"
        setup.between.apply_timed(definition)
        if fields is INCREMENTAL:
            _measure_changes(setup, measured, table, definition, hand)
        else:
            _measure_loads(setup, measured, table, definition, hand)
        expected = ratings.raised_query(table) if "python_task" in fields else ratings.query(table)
        written = ratings.query(str(definition["target_table"]))
        measured.right &= setup.src.digest(expected) == setup.dst.digest(written)
        setup.dst.execute(f"DROP TABLE {definition['target_table']}", f"DROP TABLE IF EXISTS {hand}")
    return measured


def _measure_changes(setup: Setup, measured: _Measured, table: str, definition: Definition, hand: str) -> None:
    load_by_hand(setup, hand, table)
    setup.run(setup.between, definition["name"])
    count = setup.src.number(f"SELECT count(*) FROM {table}") // 20
    for number in range(setup.rounds):
        since = ratings.change(setup.src, count, number, table)
        setup.dst.execute(f"VACUUM ANALYZE {definition['target_table']}", f"VACUUM ANALYZE {hand}")
        setup.checkpoint()
        measured.by_hand[table].append(seconds_of(lambda since=since: upsert_by_hand(setup, hand, since, table)))
        measured.ours[table].append(_run(setup, definition))


def _measure_loads(setup: Setup, measured: _Measured, table: str, definition: Definition, hand: str) -> None:
    # a load with a transform is slow, and only its memory is reported
    transformed = "python_task" in definition
    for _ in range(1 if transformed else setup.rounds):
        setup.reset(setup.between, definition)
        if not transformed:
            setup.dst.execute(f"DROP TABLE IF EXISTS {hand}")
            setup.checkpoint()
            measured.by_hand[table].append(seconds_of(lambda: load_by_hand(setup, hand, table)))
        measured.ours[table].append(_run(setup, definition))


def _run(setup: Setup, definition: Definition) -> Measurement:
    return setup.between.timed_run(definition["name"], before=setup.checkpoint)


def _time(label: str, measured: _Measured) -> Result:
    small, large = measured.seconds(SMALL), measured.seconds(LARGE)
    ratio = ratio_of(large, small)
    by_hand = {table: Samples(tuple(taken)) for table, taken in measured.by_hand.items()}
    return Result(
        row="G1",
        workload=label,
        bar=f"≤ {TIME_BAR} × the time",
        verdict=judge(ratio <= TIME_BAR, right=measured.right),
        ours=large,
        ratio=ratio,
        note=f"a tenth takes {small}; by hand {ratio_of(by_hand[LARGE], by_hand[SMALL]):.1f} ×",
        facts={"small_seconds": small.seconds, "by_hand_seconds": [taken.seconds for taken in by_hand.values()]},
    )


def _memory(label: str, lane: str, measured: _Measured) -> Result:
    small, large = measured.peak(SMALL), measured.peak(LARGE)
    return Result(
        row="G1",
        workload=f"peak memory: {label}",
        bar=f"< {LIMITS_MB[lane]} MB, +{GAIN_MB} MB",
        verdict=judge(large - small <= GAIN_MB and large < LIMITS_MB[lane], right=measured.right),
        note=f"{large:.0f} MB, {large - small:+.0f} MB",
        facts={"small_mb": small, "large_mb": large},
    )


def small_batches(setup: Setup) -> list[Result]:
    return [
        _batch_sizes(setup, "F1", ratings.query(), "id"),
        _batch_sizes(setup, "aggregate reader", ratings.aggregate(), "film_id"),
    ]


def _batch_sizes(setup: Setup, label: str, query: str, key: str) -> Result:
    seconds: dict[int, list[float]] = {DEFAULT_BATCH: [], SMALL_BATCH: []}
    expected = setup.src.digest(query)
    right = True
    for _, large_first in turns(setup.rounds):
        for size in sorted(seconds, reverse=large_first):
            name = f"g2_{label.split()[0].lower()}_{size}"
            definition: Definition = {
                "name": name,
                "source_query": query,
                "target_table": f"analytics.{name}",
                "key_columns": [key],
                "batch_size": size,
            }
            setup.reset(setup.between, definition)
            seconds[size].append(setup.run(setup.between, name))
            right &= setup.dst.digest(f"SELECT * FROM analytics.{name}") == expected
            setup.dst.execute(f"DROP TABLE analytics.{name}")
    large, small = (Samples(tuple(seconds[size])) for size in (DEFAULT_BATCH, SMALL_BATCH))
    ratio = ratio_of(small, large)
    return Result(
        row="G2",
        workload=f"batch_size {SMALL_BATCH:,} instead of {DEFAULT_BATCH:,}: {label}",
        bar=f"≤ {BATCH_BAR} × the time",
        verdict=judge(ratio <= BATCH_BAR, right=right),
        ours=small,
        ratio=ratio,
        note=f"batches of {DEFAULT_BATCH:,} take {large}",
        facts={"large_batches_seconds": large.seconds},
    )
