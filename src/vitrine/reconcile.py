"""Compare a plan's source with its target: counts, ends of a control column, a hash over the common columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from vitrine import plan
from vitrine.errors import ConfigError
from vitrine.flow import START, Batch, Column
from vitrine.model import Definition, Measure
from vitrine.plan import PostgresPlan
from vitrine.settings import Settings
from vitrine.sources.postgres import PostgresReader, SourceColumn


@dataclass(frozen=True)
class Comparison:
    """Both sides in figures; equal only if every figure is."""

    columns: tuple[str, ...]
    control: str
    source: Measure
    target: Measure

    @property
    def equal(self) -> bool:
        return self.source == self.target

    def sentence(self) -> str:
        """The verdict, and where it is different, what is."""
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
        return "source ≠ target: " + (", ".join(differences) or "same rows and ends, but different values")


def compare(definition: Definition, settings: Settings) -> Comparison:
    """The quick proof. A difference is looked at twice: a run or a writer may have been in between."""
    built = plan.build_comparison(definition, settings)
    try:
        first = _compare(definition, built)
        return first if first.equal else _compare(definition, built)
    finally:
        built.close()


def _compare(definition: Definition, built: PostgresPlan) -> Comparison:
    target_types = built.writer.types()
    control = definition.options.control_column or definition.incremental_key or built.writer.key[0]
    if isinstance(built.reader, PostgresReader) and not built.transforms:
        types = _common(target_types, built.reader.columns, control)
        source = built.reader.measure(types, control)
    else:
        batches = _transformed(built)
        first = next(batches, None)
        types = _common(target_types, first.columns if first else built.reader.columns, control)
        source = built.writer.measure_batches(chain([first] if first else [], batches), types, control)
    return Comparison(tuple(types), control, source, built.writer.measure(types, control))


def _common(target_types: dict[str, str], columns: Sequence[Column | SourceColumn], control: str) -> dict[str, str]:
    """Types of the columns that both sides have."""
    produced = {column.name for column in columns}
    types = {name: kind for name, kind in target_types.items() if name in produced}
    if control not in types:
        raise ConfigError(f"control column '{control}' is not in both source and target", code="CONTROL_COLUMN")
    return types


def _transformed(built: PostgresPlan) -> Iterator[Batch]:
    for incoming in built.reader.batches(START, built.pace):
        batch = incoming
        for transform in built.transforms:
            batch = transform(batch)
        if batch.count:
            yield batch
