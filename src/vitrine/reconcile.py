"""Compare a plan's source with its target: counts, ends of a control column, a hash over the common columns."""

from collections.abc import Iterator
from dataclasses import dataclass

from vitrine import plan
from vitrine.errors import ConfigError
from vitrine.flow import START, Batch
from vitrine.model import Definition, Measure
from vitrine.plan import PostgresPlan
from vitrine.settings import Settings


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
    produced = _produced_columns(built)
    types = {name: kind for name, kind in target_types.items() if name in produced}
    control = definition.options.control_column or definition.incremental_key or built.writer.key[0]
    if control not in types:
        raise ConfigError(f"control column '{control}' is not in both source and target", code="CONTROL_COLUMN")
    if built.transforms:
        source = built.writer.measure_batches(_transformed(built), types, control)
    else:
        source = built.reader.measure(types, control)
    return Comparison(tuple(types), control, source, built.writer.measure(types, control))


def _produced_columns(built: PostgresPlan) -> set[str]:
    """What the source gives; where transforms may add columns, everything the target has counts as given."""
    if built.transforms:
        return set(built.writer.types())
    return {column.name for column in built.reader.columns}


def _transformed(built: PostgresPlan) -> Iterator[Batch]:
    for incoming in built.reader.batches(START, built.batch_size):
        batch = incoming
        for transform in built.transforms:
            batch = transform(batch)
        if batch.count:
            yield batch
