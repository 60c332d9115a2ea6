"""What a save means for checkpoint and load: pure decisions, one for every step."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from vitrine.core.rows import START, Counts, Entry, Generation, KeptGeneration, Position, Reject, State, Step, Written
from vitrine.store.checkpoint import advance, moves

TYPES = "modified timestamp with time zone, id uuid"
OLD_TYPES = "modified date, id uuid"
END, POSITION = ("7", "b"), Position(("5",))
LOAD = Generation(3, ("4", "a"), Position(("4",)), rows=40, bound="5", fingerprint="query", age=timedelta(minutes=2))
STATE = State(
    Position(("1", "a")),
    OLD_TYPES,
    generation=LOAD,
    identity="oid 7",
    facts={"offset": 1},
    totals=Counts(read=10, written=9, deleted=1, rejected=1, repeated=2, staged=40),
)
COUNTS = Counts(read=5, written=4, deleted=3, rejected=2, repeated=1, staged=5)


KEPT = KeptGeneration(2, 30, "query", Position(("3", "c")), None, "oid 5", {"offset": 9})


def entry(step: Step, written: Written | None = None) -> Entry:
    restored = KEPT if step is Step.RESTORED else None
    return Entry(step, END, POSITION, read=5, written=written or Written(COUNTS), restored=restored)


def saved(step: Step, state: State = STATE) -> State:
    return advance(state, entry(step), TYPES)


def test_a_checkpoint_stores_the_position_and_its_types() -> None:
    after = saved(Step.CHECKPOINT)
    assert (after.position, after.cursor_types) == (POSITION, TYPES)
    assert after.generation == LOAD


def test_a_restored_generation_brings_its_own_state_and_closes_a_load() -> None:
    after = saved(Step.RESTORED)
    assert (after.position, after.cursor_types) == (KEPT.position, KEPT.cursor_types)
    assert (after.identity, after.facts) == (KEPT.identity, KEPT.facts)
    assert (after.generation, after.published) == (None, None)


def test_what_the_sink_says_about_a_restored_generation_is_newer_than_what_was_stored() -> None:
    written = Written(identity="oid 6", facts={"offset": 10})
    after = advance(STATE, entry(Step.RESTORED, written), TYPES)
    assert (after.identity, after.facts) == ("oid 6", {"offset": 10})


def test_a_checkpoint_stores_the_position_and_not_the_end() -> None:
    pending = Position(("5",), ("7", "b"), datetime(2026, 1, 1, tzinfo=UTC))
    after = advance(STATE, replace(entry(Step.CHECKPOINT), position=pending), TYPES)
    assert after.position == pending


def test_a_staged_unit_moves_the_load_and_leaves_the_checkpoint_alone() -> None:
    after = saved(Step.STAGED)
    assert (after.position, after.cursor_types) == (STATE.position, OLD_TYPES)
    assert after.generation == replace(LOAD, cursor=END, position=POSITION, rows=45)
    assert after.published is None


def test_staged_rows_count_and_not_rows_read() -> None:
    written = Written(Counts(read=5, staged=2, rejected=3))
    after = advance(STATE, entry(Step.STAGED, written), TYPES)
    assert after.generation is not None
    assert after.generation.rows == 42


def test_a_staged_unit_without_a_load_changes_nothing_but_the_totals() -> None:
    state = replace(STATE, generation=None)
    assert saved(Step.STAGED, state) == replace(state, totals=state.totals + COUNTS)


def test_a_first_load_leaves_its_position_as_the_first_checkpoint() -> None:
    after = saved(Step.PUBLISHED, replace(STATE, position=START, cursor_types=None))
    assert (after.position, after.cursor_types) == (POSITION, TYPES)
    assert (after.generation, after.published) == (None, LOAD)


def test_a_full_load_leaves_no_checkpoint() -> None:
    state = replace(STATE, position=START, cursor_types=None)
    after = advance(state, replace(entry(Step.PUBLISHED), position=START), TYPES)
    assert (after.position, after.cursor_types) == (START, None)
    assert (after.generation, after.published) == (None, LOAD)


def test_a_discarded_load_is_forgotten() -> None:
    after = saved(Step.DISCARDED)
    assert (after.generation, after.published) == (None, None)
    assert (after.position, after.cursor_types) == (STATE.position, OLD_TYPES)


def test_progress_changes_neither_checkpoint_nor_load() -> None:
    state = replace(STATE, published=replace(LOAD, number=2))
    assert saved(Step.PROGRESS, state) == replace(state, totals=state.totals + COUNTS)


@pytest.mark.parametrize("step", Step)
def test_every_step_adds_its_counts(step: Step) -> None:
    after = saved(step)
    assert after.totals == STATE.totals + COUNTS
    assert after.totals.staged == 45


@pytest.mark.parametrize("step", [step for step in Step if step is not Step.RESTORED])
def test_every_step_keeps_identity_and_facts_unless_the_unit_has_others(step: Step) -> None:
    assert (saved(step).identity, saved(step).facts) == ("oid 7", {"offset": 1})
    written = Written(identity="oid 8", facts={})
    after = advance(STATE, entry(step, written), TYPES)
    assert (after.identity, after.facts) == ("oid 8", {})


@pytest.mark.parametrize("step", Step)
def test_rejects_do_not_concern_the_state(step: Step) -> None:
    rejects = (Reject("1", "name", "22001", "too long", "{}"),)
    written = Written(COUNTS, rejects, healed=("2",))
    assert advance(STATE, entry(step, written), TYPES) == saved(step)


# -- progress ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "moved"),
    [
        (Step.CHECKPOINT, True),
        (Step.STAGED, True),
        (Step.PUBLISHED, True),
        (Step.DISCARDED, True),
        (Step.RESTORED, True),
        (Step.PROGRESS, False),
    ],
)
def test_a_step_moves_if_it_changes_what_is_stored(step: Step, moved: bool) -> None:
    after = advance(STATE, entry(step, Written(Counts(read=5, staged=5, rejected=5, repeated=5))), TYPES)
    assert moves(STATE, after, Counts()) is moved


@pytest.mark.parametrize(
    ("counts", "moved"),
    [
        (Counts(), False),
        (Counts(read=9, rejected=9, repeated=9, staged=9), False),
        (Counts(written=1), True),
        (Counts(deleted=1), True),
    ],
)
def test_rows_that_changed_the_target_are_progress(counts: Counts, moved: bool) -> None:
    assert moves(STATE, STATE, counts) is moved


def test_a_checkpoint_at_the_same_position_is_no_progress() -> None:
    same = Entry(Step.CHECKPOINT, END, STATE.position)
    assert not moves(STATE, advance(STATE, same, OLD_TYPES), Counts())
    pending = replace(STATE.position, pending_cursor=END)
    assert moves(STATE, advance(STATE, replace(same, position=pending), OLD_TYPES), Counts())


def test_a_load_that_has_staged_nothing_is_no_progress() -> None:
    empty = replace(STATE, generation=Generation(4))
    assert not moves(replace(STATE, generation=None), empty, Counts())
    assert not moves(empty, advance(empty, Entry(Step.STAGED), TYPES), Counts())
    assert not moves(empty, advance(empty, Entry(Step.DISCARDED), TYPES), Counts())


def test_a_published_load_is_progress_even_if_no_row_changed() -> None:
    empty = replace(STATE, generation=Generation(4))
    assert moves(empty, advance(empty, Entry(Step.PUBLISHED), TYPES), Counts())
