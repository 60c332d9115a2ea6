"""Restoring a kept generation: the order of publish, save and discard, in memory."""

from typing import Any

import pytest

from tests.helpers.memory import Calls, MemoryCheckpoint, MemoryControl, MemorySink, MemoryStore
from vitrine.core.protocols import Outcome, Phase, Stop
from vitrine.core.repair import generation_to_restore, restore
from vitrine.core.rows import Generation, KeptGeneration, LoadInfo, Position, State, Step
from vitrine.errors import RequestRefused, TransientError

KEPT = KeptGeneration(3, 1, "query", Position(("5",)), "id integer", "first", {"offset": 1})
LIVE = KeptGeneration(4, 1, "query", Position(("7",)), "id integer", "second", {"offset": 2})
OPEN = Generation(5, fingerprint="query")


def world(
    generation: Generation | None = None, **fields: Any
) -> tuple[Calls, MemorySink, MemoryCheckpoint, MemoryControl]:
    """Generation 4 is visible, and generation 3 is kept."""
    calls = Calls()
    kept = {3: {1: {"id": 1, "name": "old"}}}
    sink = MemorySink(calls, joins=False, target={1: {"id": 1, "name": "new"}}, published=4, kept=kept, **fields)
    checkpoint = MemoryCheckpoint(MemoryStore(State(Position(("9",)), generation=generation)), calls)
    checkpoint.open("")
    return calls, sink, checkpoint, MemoryControl(calls)


def test_the_kept_rows_are_visible_again_and_their_checkpoint_is_saved_after_it() -> None:
    calls, sink, checkpoint, control = world()
    restore(sink, KEPT, "mem:target", checkpoint, control)
    assert sink.rows == [{"id": 1, "name": "old"}]
    assert sink.infos == [LoadInfo(rows=0, repeats=True, max_delete_ratio=None)]
    assert calls[-3:] == ["publish", "commit", "save"]
    state = checkpoint.store.state
    assert (state.position, state.cursor_types, state.facts) == (KEPT.position, KEPT.cursor_types, KEPT.facts)
    assert [entry.step for entry in checkpoint.entries] == [Step.RESTORED]
    assert control.phases == [Phase.PUBLISH]


def test_a_load_under_construction_is_removed_after_the_save() -> None:
    calls, sink, checkpoint, control = world(OPEN)
    restore(sink, KEPT, "mem:target", checkpoint, control)
    assert calls[-2:] == ["save", "discard 5"]
    assert checkpoint.store.state.generation is None


@pytest.mark.parametrize(("kept", "text"), [(None, "has no earlier generation"), (LIVE, "does not keep generation 4")])
def test_without_a_kept_generation_nothing_changes(kept: KeptGeneration | None, text: str) -> None:
    calls, sink, checkpoint, control = world()
    sink.published = 6
    with pytest.raises(RequestRefused, match=text) as refused:
        restore(sink, kept, "mem:target", checkpoint, control)
    assert refused.value.code == "NOTHING_TO_ROLL_BACK"
    assert (calls, checkpoint.entries) == ([], [])
    assert sink.rows == [{"id": 1, "name": "new"}]


def test_a_failed_save_is_repeated_with_the_same_generation() -> None:
    _, sink, checkpoint, control = world()
    checkpoint.error = TransientError("the store is unavailable")
    with pytest.raises(TransientError):
        restore(sink, KEPT, "mem:target", checkpoint, control)
    assert sink.published == 3
    checkpoint.error = None
    restore(sink, KEPT, "mem:target", checkpoint, control)
    assert sink.rows == [{"id": 1, "name": "old"}]
    assert checkpoint.store.state.position == KEPT.position


def test_a_pause_or_a_stop_before_the_publish_ends_the_run() -> None:
    calls, sink, checkpoint, control = world()
    control.polls = 1
    with pytest.raises(Stop) as stopped:
        restore(sink, KEPT, "mem:target", checkpoint, control)
    assert stopped.value.outcome is Outcome.PAUSED
    assert calls == []


def test_an_interrupted_wait_of_the_sink_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*_: Any) -> None:
        raise Stop(Outcome.RELEASED)

    _, sink, checkpoint, control = world()
    monkeypatch.setattr(MemorySink, "load", wait)
    with pytest.raises(Stop) as stopped:
        restore(sink, KEPT, "mem:target", checkpoint, control)
    assert stopped.value.outcome is Outcome.RELEASED
    assert checkpoint.entries == []


def test_the_generation_before_the_visible_one_is_restored() -> None:
    _, sink, checkpoint, _ = world()
    assert generation_to_restore(sink, LIVE, KEPT, checkpoint) is KEPT
    assert generation_to_restore(sink, None, None, checkpoint) is None


def test_a_load_under_construction_does_not_change_which_one_that_is() -> None:
    _, sink, checkpoint, _ = world(OPEN)
    assert generation_to_restore(sink, LIVE, KEPT, checkpoint) is KEPT


def test_if_a_load_is_visible_that_was_not_saved_the_live_one_is_restored_with_the_state_of_now() -> None:
    _, sink, checkpoint, _ = world(OPEN)
    sink.published = OPEN.number
    found = generation_to_restore(sink, LIVE, KEPT, checkpoint)
    assert found is not None
    assert (found.number, found.position) == (LIVE.number, Position(("9",)))
