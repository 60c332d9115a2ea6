"""Compares a pipeline's source with its target: counts, bounds of a control column, a hash over the common columns."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from vitrine.engine import plan
from vitrine.engine.digests import digest_rows
from vitrine.engine.plan import Prepared
from vitrine.errors import ConfigError
from vitrine.flow.rows import ALL_KEYS, Batch, Column, Compare, Digest, Read
from vitrine.flow.throttle import Throttle
from vitrine.model import Definition
from vitrine.settings import Settings


@dataclass(frozen=True)
class Comparison:
    """The digests of both sides; equal only if every value is."""

    columns: tuple[str, ...]
    control: str
    source: Digest
    target: Digest

    @property
    def equal(self) -> bool:
        return self.source == self.target

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
        return "source ≠ target: " + (", ".join(differences) or "same counts and bounds, but different values")


def compare(definition: Definition, settings: Settings) -> Comparison:
    """Compare the digests of both sides. A difference is checked twice: a write may have happened in between."""
    built = plan.build_comparison(definition, settings)
    try:
        first = _compare(definition, built)
        return first if first.equal else _compare(definition, built)
    finally:
        built.close()


def _compare(definition: Definition, built: Prepared) -> Comparison:
    target = built.plan.target
    if not target.exists:
        raise ConfigError(
            f"target {definition.target_table} does not exist; run the pipeline first", code="TARGET_MISSING"
        )
    control = definition.options.control_column or definition.incremental_key or target.key[0]
    if not built.plan.user_code:
        wanted = _common_columns(target.columns, built.source.columns, target.key, control)
        source = built.plan.source.digest(wanted)
        theirs = built.plan.sink.digest(wanted) if source is not None else None
        if source is not None and theirs is not None:
            return _comparison(wanted, source, theirs)
    batches = _transformed_rows(definition, built)
    first = next(batches, None)
    produced = first.columns if first else built.source.columns
    wanted = _common_columns(target.columns, produced, target.key, control)
    rows = chain([first] if first else [], batches)
    theirs = built.plan.sink.digest(wanted)
    if theirs is None:
        stored = built.plan.sink.fetch(ALL_KEYS, wanted.columns)
        return _comparison(wanted, digest_rows(_with_target_types(rows, wanted), wanted), digest_rows(stored, wanted))
    ours = built.plan.sink.digest(wanted, rows)
    return _comparison(wanted, ours or (), theirs)


def _comparison(wanted: Compare, source: Sequence[Digest], target: Sequence[Digest]) -> Comparison:
    control = wanted.control.name if wanted.control else ""
    columns = tuple(column.name for column in wanted.columns)
    return Comparison(columns, control, source[0], target[0])


def _common_columns(stored: Sequence[Column], produced: Sequence[Column], key: Sequence[str], control: str) -> Compare:
    """The columns that both sides have, in the target's types."""
    names = {column.name for column in produced}
    common = {column.name: column for column in stored if column.name in names}
    if control not in common:
        raise ConfigError(f"control column '{control}' is not in both source and target", code="CONTROL_COLUMN")
    return Compare(
        key=tuple(common[name] for name in key if name in common),
        columns=tuple(common.values()),
        control=common[control],
    )


def _transformed_rows(definition: Definition, built: Prepared) -> Iterator[Batch]:
    throttle = Throttle(plan.limits_of(definition, built.lane))
    incremental = built.plan.incremental
    read = Read(
        built.plan.lane,
        built.plan.order,
        skip_null=built.plan.skip_null and incremental,
        complete=not incremental,
    )
    for batch in built.plan.source.batches(read, throttle):
        transformed = batch
        for transform in built.plan.transforms:
            transformed = transform(transformed)
        if transformed.count:
            yield transformed


def _with_target_types(rows: Iterable[Batch], wanted: Compare) -> Iterator[Batch]:
    """The rows in the column types of the target, because their texts are compared."""
    types = {column.name: column for column in wanted.columns}
    for batch in rows:
        columns = tuple(types.get(column.name, column) for column in batch.columns)
        yield Batch(batch.payload, columns, batch.end, batch.position)
