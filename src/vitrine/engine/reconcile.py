"""Compares a pipeline's source with its target: counts, bounds of a control column, a hash over the common columns."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

from vitrine.engine import plan
from vitrine.engine.digests import digest_rows
from vitrine.engine.plan import CheckedDefinition, Prepared
from vitrine.errors import ConfigError, DataError
from vitrine.flow.background import interruptible
from vitrine.flow.comparison import canonical, common_form
from vitrine.flow.jobs import RunInfo
from vitrine.flow.protocols import Interrupted, Outcome, Phase, RunControl
from vitrine.flow.rows import ALL_KEYS, Batch, Column, Compare, Digest, Key, Read
from vitrine.flow.throttle import Throttle
from vitrine.model import Claim, Definition
from vitrine.settings import Settings

LIMITING_FINDINGS = frozenset({"ROW_SECURITY", "NULL_CURSOR", "NULL_CURSOR_UNKNOWN"})
"""Codes of findings about rows that the source does not return, and which therefore are not compared."""

KEYS_NAMED = 5
"""Keys in quarantine that are named; of more, only the number is."""


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
        if not built.plan.target.exists:
            raise ConfigError(
                f"target {definition.target_table} does not exist; run the pipeline first", code="TARGET_MISSING"
            )
        sides = _Sides(definition, built, quarantined, with_values=with_values)
        first = sides.compared()
        return first if first.equal else sides.compared()
    finally:
        built.close()


def compare_claimed(
    claim: Claim, settings: Settings, quarantined: Collection[str], control: RunControl
) -> Comparison | Outcome:
    """The comparison as a run: PAUSED or RELEASED if the run should end before its result."""
    # without an id of the pipeline, so that the source reports what it leaves out, which a run does not ask for
    run = RunInfo(claim.session, log_fields=claim.log_fields())
    checked = plan.check(claim.definition, settings, lease=control, run=run)
    control.enter(Phase.COMPARE)
    if checked.tasks or claim.definition.reader is not None:
        control.enter(Phase.USER_CODE)
    try:
        return interruptible(lambda: compare_checked(checked, quarantined), control, checked.cancel)
    except Interrupted as interrupted:
        return interrupted.outcome


class _Sides:
    """Source and target of one comparison."""

    def __init__(
        self, definition: Definition, built: Prepared, quarantined: Collection[str], *, with_values: bool
    ) -> None:
        self._definition = definition
        self._built = built
        self._plan = built.plan
        self._quarantined = quarantined
        self._with_values = with_values
        self._control = definition.options.control_column or definition.incremental_key or built.plan.target.key[0]

    def compared(self) -> Comparison:
        if not self._plan.user_code:
            wanted = self._common_columns(self._built.source.columns)
            if (found := self._digested(wanted)) is not None:
                return found
        return self._streamed()

    def _digested(self, wanted: Compare) -> Comparison | None:
        """Both sides as their systems compute them; None if one of them computes no digest."""
        unreadable: dict[str, str] = {}
        try:
            figures = self._figures(wanted)
        except (ConfigError, DataError):
            unreadable = self._unreadable(wanted)
            if not unreadable:
                raise
            wanted = _without(wanted, unreadable)
            figures = self._figures(wanted)
        if figures is None:
            return None
        named = [f"column '{name}' cannot be compared ({reason})" for name, reason in unreadable.items()]
        return self._comparison(wanted, *figures, self._built.source.columns, named)

    def _figures(self, wanted: Compare) -> tuple[Digest, Digest] | None:
        source = self._plan.source.digest(wanted)
        target = self._plan.sink.digest(wanted) if source is not None else None
        return (source[0], target[0]) if source is not None and target is not None else None

    def _unreadable(self, wanted: Compare) -> dict[str, str]:
        """Columns whose values have no common form on one of the sides, each with the error."""
        found: dict[str, str] = {}
        for column in wanted.columns:
            try:
                self._figures(replace(wanted, columns=(column,), control=None))
            except (ConfigError, DataError) as exc:
                found[column.name] = str(exc)
        return found if len(found) < len(wanted.columns) else {}

    def _streamed(self) -> Comparison:
        """Rows as they were produced, beside the stored ones."""
        batches = self._produced()
        first = next(batches, None)
        produced = first.columns if first else self._built.source.columns
        wanted = self._common_columns(produced, exact=False)
        rows = chain([first] if first else [], batches)
        theirs = self._plan.sink.digest(wanted)
        if theirs is None:
            stored = self._plan.sink.fetch(ALL_KEYS, wanted.columns)
            return self._comparison(wanted, digest_rows(rows, wanted)[0], digest_rows(stored, wanted)[0], produced)
        ours = self._plan.sink.digest(wanted, rows) or digest_rows(rows, wanted)
        return self._comparison(wanted, ours[0], theirs[0], produced)

    def _comparison(
        self,
        wanted: Compare,
        source: Digest,
        target: Digest,
        produced: Sequence[Column],
        unreadable: Sequence[str] = (),
    ) -> Comparison:
        return Comparison(
            columns=tuple(column.name for column in wanted.columns),
            control=self._control,
            source=source,
            target=target,
            left_out=tuple(self._left_out(wanted, produced)),
            unreadable=tuple(unreadable),
        )

    def _common_columns(self, produced: Sequence[Column], *, exact: bool = True) -> Compare:
        """The columns that both sides have, in the types of the source."""
        stored = {column.name: column for column in self._plan.target.columns}
        common = {column.name: column for column in produced if column.name in stored}
        if self._control not in common:
            raise ConfigError(
                f"control column '{self._control}' is not in both source and target", code="CONTROL_COLUMN"
            )
        wanted = Compare(
            key=tuple(common[name] for name in self._plan.target.key if name in common),
            columns=tuple(common.values()) if self._with_values else (common[self._control],),
            control=common[self._control],
            forms={name: common_form(one.type, stored[name].type, exact=exact) for name, one in common.items()},
        )
        return replace(wanted, skipped=tuple(_quarantined_keys(self._quarantined, wanted)))

    def _left_out(self, wanted: Compare, produced: Sequence[Column]) -> Iterator[str]:
        definition = self._definition
        if self._quarantined:
            named = ", ".join(sorted(self._quarantined)[:KEYS_NAMED])
            more = f" and {len(self._quarantined) - KEYS_NAMED} more" if len(self._quarantined) > KEYS_NAMED else ""
            yield f"{len(self._quarantined)} key(s) in quarantine are not compared: {named}{more}"
        if unknown := len(self._quarantined) - len(wanted.skipped):
            yield f"{unknown} of the keys in quarantine have an ambiguous text, so their rows are compared"
        if self._plan.incremental and definition.options.on_null_cursor == "ignore":
            names = " or ".join(f"'{name}'" for name in self._plan.order)
            yield f"rows with NULL in {names} are not compared (options.on_null_cursor: ignore)"
        stored = [column.name for column in self._plan.target.columns]
        names = [column.name for column in produced]
        if only_stored := [name for name in stored if name not in names]:
            yield f"column(s) {', '.join(only_stored)} are not compared: only the target has them"
        if only_produced := [name for name in names if name not in stored]:
            yield f"column(s) {', '.join(only_produced)} are not compared: only the source has them"
        yield from (one.text for one in self._built.source.findings if one.code in LIMITING_FINDINGS)

    def _produced(self) -> Iterator[Batch]:
        """The rows of the source after its transforms."""
        throttle = Throttle(plan.limits_of(self._definition, self._built.lane))
        incremental = self._plan.incremental
        read = Read(
            self._plan.lane, self._plan.order, skip_null=self._plan.skip_null and incremental, complete=not incremental
        )
        for batch in self._plan.source.batches(read, throttle):
            transformed = batch
            for transform in self._plan.transforms:
                transformed = transform(transformed)
            if transformed.count:
                yield transformed


def _without(wanted: Compare, names: Collection[str]) -> Compare:
    control = wanted.control if wanted.control and wanted.control.name not in names else None
    columns = tuple(column for column in wanted.columns if column.name not in names)
    return replace(wanted, columns=columns, control=control)


def _quarantined_keys(quarantined: Iterable[str], wanted: Compare) -> Iterator[Key]:
    """The keys in the common forms of their columns; those that cannot be read are skipped."""
    forms = [wanted.form_of(column) for column in wanted.key]
    for text in quarantined:
        key = _key_of(text, len(forms))
        if key is not None:
            yield tuple(canonical(value, form) or "" for value, form in zip(key, forms, strict=True))


def _key_of(text: str, width: int) -> Key | None:
    """The columns of a key in quarantine: a JSON array of their texts."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, list):
        values = cast(list[Any], found)
        if len(values) == width and all(isinstance(value, str) for value in values):
            return tuple(cast(list[str], values))
    return (text,) if width == 1 else None
