"""What the columns of a definition do to those of an existing mart."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from vitrine.flow.rows import Column, Finding, TargetInfo, bare_type
from vitrine.model import Definition, Mode

Change = Literal["added", "lost", "retyped"]


@dataclass(frozen=True)
class ColumnChange:
    """A column that the rows and the mart do not have alike."""

    name: str
    change: Change
    stored: str | None  # type in the mart; None: it lacks the column
    produced: str | None  # type of the rows; None: they lack the column
    effect: str  # what a run does with it


def compare_columns(
    definition: Definition, target: TargetInfo, produced: Sequence[Column], refusals: Sequence[Finding]
) -> Iterator[ColumnChange]:
    """Every difference, in the order of the rows' columns, then of the mart's; none if there is no mart yet."""
    if not target.exists:
        return
    stored = {column.name: column.type for column in target.columns}
    refused = {finding.column: finding for finding in refusals if finding.column is not None}
    is_rebuilt = target.rewrites and definition.mode is Mode.FULL
    for column in produced:
        old = stored.get(column.name)
        if old is None:
            effect = _effect(column.name, refused) or _added(definition, is_rebuilt=is_rebuilt)
            yield ColumnChange(column.name, "added", None, column.type, effect)
        elif bare_type(old) != bare_type(column.type) and not column.inferred:
            effect = _effect(column.name, refused) or _retyped(old, is_rebuilt=is_rebuilt)
            yield ColumnChange(column.name, "retyped", old, column.type, effect)
    names = {column.name for column in produced}
    for name, old in stored.items():
        if name in target.written and name not in names:
            effect = _effect(name, refused) or _lost(is_rebuilt=is_rebuilt)
            yield ColumnChange(name, "lost", old, None, effect)


def _effect(name: str, refused: Mapping[str, Finding]) -> str | None:
    return f"the run is refused ({refused[name].code})" if name in refused else None


def _added(definition: Definition, *, is_rebuilt: bool) -> str:
    if is_rebuilt:
        return "the target is built again with it"
    if definition.mode is Mode.FULL:
        return "added to the mart (on_schema_change: add_columns); every row that has a value in it changes"
    return (
        "added to the mart (on_schema_change: add_columns); rows that a run does not write hold NULL in it until a"
        " full run"
    )


def _retyped(stored: str, *, is_rebuilt: bool) -> str:
    return "the target is built again with the new type" if is_rebuilt else f"stored as {stored}, or rejected"


def _lost(*, is_rebuilt: bool) -> str:
    if is_rebuilt:
        return "dropped: the target is built again without it"
    return "kept in the mart, but no longer written: its values become outdated"
