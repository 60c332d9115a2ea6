"""Makes an earlier generation of a target visible again, with the checkpoint that belongs to it."""

from vitrine.errors import RequestRefused
from vitrine.flow.loop import commit_unit, write_nothing
from vitrine.flow.protocols import Checkpoint, Load, LoadState, Phase, RunControl, Sink
from vitrine.flow.rows import Entry, KeptGeneration, LoadInfo, Step

NOTHING_TO_ROLL_BACK = "NOTHING_TO_ROLL_BACK"


def kept_load(sink: Sink, kept: KeptGeneration | None, target: str) -> Load:
    """The generation in the target; RequestRefused if it is not there any more."""
    if kept is None:
        raise RequestRefused(
            f"{target} has no earlier generation to go back to: only a full load that was published leaves one",
            code=NOTHING_TO_ROLL_BACK,
        )
    load = sink.load(kept.as_load())
    if load.state is LoadState.ABSENT:
        raise RequestRefused(
            f"{target} does not keep generation {kept.number}, which was live before: there is nothing to go back to;"
            " correct the pipeline and run it again",
            code=NOTHING_TO_ROLL_BACK,
        )
    return load


def restore(sink: Sink, kept: KeptGeneration | None, target: str, checkpoint: Checkpoint, control: RunControl) -> None:
    """Publish the generation once more, and store its checkpoint; a load under construction is discarded.

    Can be repeated after a failure at any point: a second publish of the same generation changes nothing.
    """
    abandoned = checkpoint.state.generation
    control.check()  # much time may have passed since the claim
    load = kept_load(sink, kept, target)
    control.enter(Phase.PUBLISH, checkpoint.state.totals)
    # it was counted and compared when it was published first, and it may have grown since
    opened = load.publish(checkpoint.stamp(), LoadInfo(rows=0, repeats=True, max_delete_ratio=None))
    commit_unit(opened, write_nothing, checkpoint, Entry(Step.RESTORED, restored=kept))
    if abandoned is not None:  # removed after the save, which proves that this run owns it
        sink.load(abandoned).discard()


def generation_to_restore(
    sink: Sink, live: KeptGeneration | None, previous: KeptGeneration | None, checkpoint: Checkpoint
) -> KeptGeneration | None:
    """The generation that was visible before the one that is visible now.

    A load that was published, but not saved, is visible although another one is live in the store: that one was
    visible before it, and the stored state is still its own.
    """
    state = checkpoint.state
    if live is None or state.generation is None or sink.load(state.generation).state is not LoadState.PUBLISHED:
        return previous
    return live.with_state_of(state)
