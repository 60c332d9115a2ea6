"""Compares a pipeline's source with its target: counts, bounds of a control column, a hash over the common columns."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from vitrine.engine import plan
from vitrine.engine.plan import CheckedDefinition, Prepared
from vitrine.engine.sides import Sides, both, left_out, open_sides
from vitrine.errors import ConfigError
from vitrine.flow.background import interruptible
from vitrine.flow.jobs import RunInfo
from vitrine.flow.protocols import Phase, RunControl
from vitrine.flow.rows import Digest
from vitrine.model import Definition
from vitrine.pipeline import Claim
from vitrine.settings import Settings

Result = TypeVar("Result")


@dataclass(frozen=True)
class Comparison:
    """The digests of both sides; equal only if every value is."""

    columns: tuple[str, ...]
    control: str
    source: Digest
    target: Digest
    left_out: tuple[str, ...] = ()  # what is not compared, one sentence each
    unreadable: tuple[str, ...] = ()  # columns that could not be compared, with the reasons

    @property
    def equal(self) -> bool:
        return self.source == self.target and not self.unreadable

    def figures(self) -> dict[str, Any]:
        """As JSON, for the history."""
        return {
            "equal": self.equal,
            "sentence": self.sentence(),
            "control": self.control,
            "columns": list(self.columns),
            "source": _side(self.source),
            "target": _side(self.target),
            "left_out": list(self.left_out),
        }

    def sentence(self) -> str:
        """The result, with every difference."""
        if self.equal:
            return "source = target"
        differences = [
            f"{name} {ours} ≠ {theirs}"
            for name, ours, theirs in (
                ("rows", self.source.rows, self.target.rows),
                (f"lowest {self.control}", self.source.lowest, self.target.lowest),
                (f"highest {self.control}", self.source.highest, self.target.highest),
            )
            if ours != theirs
        ]
        if not differences and self.source != self.target:
            differences = ["same counts and bounds, but different values"]
        return "source ≠ target: " + ", ".join([*differences, *self.unreadable])


def _side(digest: Digest) -> dict[str, Any]:
    # the hash as text: a JSON reader may round an integer of this size
    return {"rows": digest.rows, "lowest": digest.lowest, "highest": digest.highest, "hash": str(digest.hash)}


def compare(definition: Definition, settings: Settings, quarantined: Collection[str] = ()) -> Comparison:
    """Compare the digests of both sides, without the rows whose keys are in quarantine."""
    return compare_checked(plan.check(definition, settings), quarantined)


def compare_checked(
    checked: CheckedDefinition, quarantined: Collection[str] = (), *, with_values: bool = True
) -> Comparison:
    """The same for a definition that was checked; `with_values=False`: only the values of the control column.

    A difference is checked twice: a write may have happened in between.
    """
    definition = checked.definition
    built = plan.prepare(checked, writes=False)
    try:
        refuse_missing(checked, built)
        sides = open_sides(definition, built, quarantined, "all" if with_values else "control")
        first = _compared(sides)
        compared = first if first.equal else _compared(sides)
        not_compared = left_out(definition, built, quarantined, sides.wanted, sides.produced)
        return replace(compared, left_out=tuple(not_compared))
    finally:
        built.close()


def refuse_missing(checked: CheckedDefinition, built: Prepared) -> None:
    if not built.plan.target.exists:
        raise ConfigError(
            f"target {checked.definition.target_table} does not exist; run the pipeline first", code="TARGET_MISSING"
        )


def _compared(sides: Sides) -> Comparison:
    (source,), (target,) = both(sides, sides.pair)
    return Comparison(
        columns=tuple(column.name for column in sides.wanted.columns),
        control=sides.control,
        source=source,
        target=target,
        unreadable=tuple(sides.unreadable),
    )


def compared_as_run(
    claim: Claim, settings: Settings, control: RunControl, compare: Callable[[CheckedDefinition], Result]
) -> Result:
    """What `compare` returns for the claimed definition; Stop if the run should end before."""
    # without an id of the pipeline, so that the source reports what it leaves out, which a run does not ask for
    run = RunInfo(claim.session, log_fields=claim.log_fields())
    checked = plan.check(claim.definition, settings, lease=control, run=run)
    control.enter(Phase.COMPARE)
    if checked.tasks or claim.definition.reader is not None:
        control.enter(Phase.USER_CODE)
    return interruptible(lambda: compare(checked), control, checked.cancel)
