"""Proves that a mart equals its source, by figures or key by key, and corrects what differs."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from vitrine.compare import differences
from vitrine.compare.comparison import Sides, both, left_out, open_sides, skipped_keys
from vitrine.compare.differences import Differences
from vitrine.core import keys
from vitrine.core.prefetch import interruptible
from vitrine.core.protocols import Checkpoint, Phase, Plan, RunControl
from vitrine.core.repair import LOAD_OPEN, refuse_shrinking, run_repair
from vitrine.core.rows import Digest, Key, Position, Read
from vitrine.definition.context import RunInfo
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import KEYS_KEPT, Claim
from vitrine.errors import ConfigError, RequestRefused
from vitrine.plan import planner
from vitrine.plan.planner import CheckedDefinition, Prepared
from vitrine.settings import Settings
from vitrine.store.state import StoredState

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
    return compare_checked(planner.check(definition, settings), quarantined)


def compare_checked(
    checked: CheckedDefinition, quarantined: Collection[str] = (), *, with_values: bool = True
) -> Comparison:
    """The same for a definition that was checked; `with_values=False`: only the values of the control column.

    A difference is checked twice: a write may have happened in between.
    """
    definition = checked.definition
    built = planner.prepare(checked, writes=False)
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
    checked = planner.check(claim.definition, settings, lease=control, run=run)
    control.enter(Phase.COMPARE)
    if checked.tasks or claim.definition.reader is not None:
        control.enter(Phase.USER_CODE)
    return interruptible(lambda: compare(checked), control, checked.cancel)


@dataclass(frozen=True)
class Reconciliation:
    """What a deep reconcile has found."""

    columns: tuple[str, ...]
    source_rows: int
    target_rows: int
    differences: Differences
    waiting: int  # differing keys that are not reported, because the next run reads them
    complete: bool  # False: there may be more differences
    left_out: tuple[str, ...] = ()  # what is not compared, one sentence each
    unreadable: tuple[str, ...] = ()  # columns that could not be compared, with the reasons
    repaired: Differences | None = None  # what a repair has corrected; None: none was asked for

    @property
    def equal(self) -> bool:
        return self.complete and not self.differences.count and not self.unreadable

    def figures(self) -> dict[str, Any]:
        """As JSON, for the store."""
        found = self.differences
        return {
            "deep": True,
            "equal": self.equal,
            "sentence": self.sentence(),
            "columns": list(self.columns),
            "source_rows": self.source_rows,
            "target_rows": self.target_rows,
            "missing": _named(found.missing),
            "extra": _named(found.extra),
            "different": _named(found.different)
            | {"columns": {readable(key): list(names) for key, names in list(found.different.items())[:KEYS_KEPT]}},
            "waiting": self.waiting,
            "complete": self.complete,
            "left_out": list(self.left_out),
            "repaired": None if self.repaired is None else _repaired(self.repaired),
        }

    def sentence(self) -> str:
        """The result, with the number of each difference."""
        found = [f"repaired {_counts(self.repaired)}"] if self.repaired and self.repaired.count else []
        if self.equal:
            found.append("source = target")
        else:
            more = "" if self.complete else "at least "
            counted = [f"{more}{_counts(self.differences)}"] if self.differences.count else []
            early = [] if self.complete or counted else ["the search ended before all ranges were compared; repeat it"]
            found.append("source ≠ target: " + ", ".join([*counted, *early, *self.unreadable]))
        if self.waiting:
            found.append(f"{self.waiting} key(s) changed at the source since the last run, and the next run reads them")
        return "; ".join(found)


def readable(key: Key) -> str:
    return keys.readable(keys.to_text(tuple("NULL" if part == keys.NULL else part for part in key)))


def _named(found: Collection[Key]) -> dict[str, Any]:
    return {"count": len(found), "keys": [readable(key) for key in list(found)[:KEYS_KEPT]]}


def _repaired(found: Differences) -> dict[str, Any]:
    return {"missing": _named(found.missing), "extra": _named(found.extra), "different": _named(found.different)}


def _counts(found: Differences) -> str:
    named = {"missing": found.missing, "extra": found.extra, "different": found.different}
    return ", ".join(f"{len(some)} {name}" for name, some in named.items() if some)


def search(checked: CheckedDefinition, quarantined: Collection[str], state: StoredState) -> Reconciliation:
    """Compare every value of both sides; a key is reported only if it still differs when it is read once more.

    A key that the next run reads is not reported: its row changed, or became visible, after the last run.
    """
    built = planner.prepare(checked, writes=False)
    try:
        refuse_missing(checked, built)
        changes = _changes(built.plan, state)
        sides = open_sides(checked.definition, built, quarantined)
        found = differences.find(sides, lambda keys: _confirm(sides, keys, changes))
        not_compared = list(left_out(checked.definition, built, quarantined, sides.wanted, sides.produced))
        if changes is None and found.differences.count:
            not_compared.append("the pipeline has no cursor of time, so changes since its last load are reported too")
        return Reconciliation(
            columns=tuple(column.name for column in sides.wanted.columns),
            source_rows=found.source_rows,
            target_rows=found.target_rows,
            differences=found.differences,
            waiting=found.waiting,
            complete=found.complete,
            left_out=tuple(not_compared),
            unreadable=tuple(sides.unreadable),
        )
    finally:
        built.close()


@dataclass(frozen=True)
class KeyComparison:
    """The keys of both sides, without their values."""

    target_rows: int
    missing: int
    vanished: tuple[Key, ...]  # keys of the target that the source has no more


def compare_keys(checked: CheckedDefinition, quarantined: Collection[str], state: StoredState) -> KeyComparison:
    """Find what vanished at the source; a key is reported only if it still differs when it is read once more.

    Keys in quarantine are compared as well: the last good version of a row stays only while the source has the row.
    """
    built = planner.prepare(checked, writes=False)
    try:
        if not built.plan.target.exists:
            return KeyComparison(0, 0, ())  # transforms have dropped every row so far
        sides = open_sides(checked.definition, built, (), "key")
        changes = _changes(built.plan, state)
        found = differences.find(sides, lambda keys: _confirm(sides, keys, changes))
        missing = found.differences.without(skipped_keys(quarantined, sides.wanted)).missing
        return KeyComparison(found.target_rows, len(missing), _selectable(found.differences.extra))
    finally:
        built.close()


def repair(built: Prepared, found: Reconciliation, checkpoint: Checkpoint, control: RunControl) -> None:
    """Write missing and different keys through the pipeline's own query and transforms, and delete extra ones."""
    refuse_made_keys(built)
    wrong = found.differences
    wanted, extra = _selectable((*wrong.missing, *wrong.different)), _selectable(wrong.extra)
    # guarantee: R5
    refuse_shrinking(built.plan.target_name, found.target_rows, len(extra), built.plan.max_delete_ratio)
    run_repair(built.plan, wanted, extra, checkpoint, control)


def _selectable(found: Iterable[Key]) -> tuple[Key, ...]:
    """Those without NULL: rows that another program stored with a NULL in their key stay, and are reported."""
    return tuple(key for key in found if keys.NULL not in key)


def refuse_made_keys(built: Prepared, remedy: str = "ask for a full run instead") -> None:
    """RequestRefused if the source cannot select rows by the key of the target."""
    names = {column.name for column in built.source.columns}
    if made := [name for name in built.plan.target.key if name not in names]:
        raise RequestRefused(
            f"a transform makes '{made[0]}', which is in the key of {built.plan.target_name}, so that single keys"
            f" cannot be read from the source; {remedy}",
            code="KEY_OF_TRANSFORM",
        )


def verify(
    checked: CheckedDefinition, found: Reconciliation, quarantined: Collection[str], state: StoredState
) -> Reconciliation:
    """Compare the keys that were repaired once more."""
    built = planner.prepare(checked, writes=False)
    try:
        sides = open_sides(checked.definition, built, quarantined)
        remaining, waiting = _confirm(sides, found.differences.keys, _changes(built.plan, state))
        not_written = frozenset((*remaining.keys, *sides.wanted.skipped))  # a row that did not fit is in quarantine
        not_compared = left_out(checked.definition, built, quarantined, sides.wanted, sides.produced)
        repaired = found.differences.without(not_written)
        return replace(
            found,
            target_rows=found.target_rows + len(repaired.missing) - len(repaired.extra),
            differences=remaining,
            waiting=found.waiting + waiting,
            left_out=tuple(not_compared),
            repaired=repaired,
        )
    finally:
        built.close()


def _confirm(sides: Sides, found: Iterable[Key], changes: Read | None) -> tuple[Differences, int]:
    """Those of the keys that still differ and that the next run does not read; and the number of those it reads."""
    still = differences.check(sides, tuple(found))
    if not still.count or changes is None:
        return still, 0
    differing = frozenset(still.keys)
    # read after the check: a row that changed before it has a cursor after the checkpoint now
    waiting = {key for key in sides.keys_of(changes) if key in differing}
    # guarantee: R2
    return still.without(waiting), len(waiting)


def _changes(plan: Plan, state: StoredState) -> Read | None:
    """What the next run reads, or what has changed since the last load began; None if that is not known."""
    if plan.incremental:
        return Read(plan.lane, plan.order, state.position, skip_null=plan.skip_null)
    if state.generation_open:
        raise RequestRefused(
            f"{plan.target_name} has a load that is not published yet and will replace its rows; run it first",
            code=LOAD_OPEN,
        )
    if plan.cursor_column is None or state.generation_bound is None:
        return None
    order = (plan.cursor_column, *plan.target.key)
    return Read(plan.lane, order, Position((state.generation_bound,)), skip_null=True)
