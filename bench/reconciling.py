"""D1 and D2: every row of a mart compared with its source, and damaged rows found and repaired."""

from bench import psql, ratings
from bench.increments import INCREMENTAL
from bench.measuring import Result, Samples, judge, ratio_of, seconds_of, turns
from bench.setup import Setup

NAME, TARGET = "deep_d1", "analytics.ratings_d1"
CHANGED, DELETED, ADDED = 4, 3, 3
DAMAGED = CHANGED + DELETED + ADDED
MOST_BESIDE_HAND, MOST_BESIDE_EQUAL = 2.5, 1.3


def deep(setup: Setup) -> list[Result]:
    prepare(setup)
    by_hand, equal, peak = _compare(setup)
    repaired, right, repair_peak = _repair(setup)
    setup.dst.execute(f"DROP TABLE {TARGET}")
    beside_hand, beside_equal = ratio_of(equal, by_hand), ratio_of(repaired, equal)
    return [
        Result(
            row="D1",
            workload=f"deep reconcile of {setup.ratings:,} equal rows, other database",
            bar=f"≤ {MOST_BESIDE_HAND:g}",
            verdict=judge(beside_hand <= MOST_BESIDE_HAND, right=True),
            by_hand=by_hand,
            ours=equal,
            ratio=beside_hand,
            facts={"peak_mb": peak},
        ),
        Result(
            row="D2",
            workload=f"{DAMAGED} damaged rows of it found, repaired and verified; beside D1",
            bar=f"≤ {MOST_BESIDE_EQUAL:g}",
            verdict=judge(beside_equal <= MOST_BESIDE_EQUAL, right=right),
            by_hand=equal,
            ours=repaired,
            ratio=beside_equal,
            facts={"peak_mb": repair_peak},
        ),
    ]


def prepare(setup: Setup) -> None:
    """A mart that equals its source."""
    definition = {"name": NAME, "source_query": ratings.query(), "target_table": TARGET, **INCREMENTAL}
    setup.between.apply_timed(definition)
    setup.run(setup.between, NAME)
    setup.dst.execute(f"VACUUM ANALYZE {TARGET}")


def _compare(setup: Setup) -> tuple[Samples, Samples, float | None]:
    """Seconds by hand and ours, in turns, and our memory; a mart that is not equal ends the benchmark."""
    by_hand: list[float] = []
    ours: list[float] = []
    peak: float | None = None

    def compare_by_hand() -> None:
        setup.checkpoint()
        by_hand.append(seconds_of(lambda: _sums_by_hand(setup)))

    for _, hand_first in turns(setup.rounds):
        if hand_first:
            compare_by_hand()
        measured = setup.between.timed_run(NAME, "reconcile", "--deep", before=setup.checkpoint)
        ours.append(measured.seconds)
        peak = measured.peak_mb
        if not hand_first:
            compare_by_hand()
    return Samples(tuple(by_hand)), Samples(tuple(ours)), peak


def _sums_by_hand(setup: Setup) -> None:
    """The number of rows and the sum of their hashes, on both sides."""
    for url, table in ((setup.src.url, ratings.TABLE), (setup.dst.url, TARGET)):
        psql.run(
            url,
            "SELECT count(*), sum(('x' || left(md5(q::text), 16))::bit(64)::bigint)"
            f" FROM ({ratings.query(table)}) AS q",
        )


def _repair(setup: Setup) -> tuple[Samples, bool, float | None]:
    seconds: list[float] = []
    right, peak = True, None
    for number in range(setup.rounds):
        damage(setup, seed=number)
        measured = setup.between.timed_run(NAME, "reconcile", "--repair", before=setup.checkpoint)
        seconds.append(measured.seconds)
        peak = measured.peak_mb
        right = right and setup.dst.digest(ratings.query(TARGET)) == setup.src.digest(ratings.query())
    return Samples(tuple(seconds)), right, peak


def damage(setup: Setup, seed: int) -> None:
    """Change, delete and add rows, spread over the mart."""
    chosen = f"SELECT id FROM {TARGET} ORDER BY uuid_hash_extended(id, {seed}), id LIMIT"
    setup.dst.execute(
        f"UPDATE {TARGET} SET score = score + 1 WHERE id IN ({chosen} {CHANGED})",
        f"DELETE FROM {TARGET} WHERE id IN ({chosen} {DELETED} OFFSET {CHANGED})",
        f"INSERT INTO {TARGET} SELECT md5('added ' || n)::uuid, md5('u')::uuid, md5('f')::uuid, 1, now(), now()"
        f" FROM generate_series(1, {ADDED}) AS n",
        f"VACUUM ANALYZE {TARGET}",
    )
