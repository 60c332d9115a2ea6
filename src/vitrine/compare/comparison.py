"""Source and target of a comparison: what both have in common, and digests of each."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import chain
from typing import Any, Literal, Protocol, TypeVar, cast

from vitrine.compare.digests import cut_rows, digest_ordered, digest_rows, rows_of
from vitrine.core.keys import NULL, canonical, common_form, next_key
from vitrine.core.protocols import Plan, Throttle
from vitrine.core.rows import ALL_KEYS, Batch, Column, CommonForm, Compare, Digest, Key, KeyRange, Lane, Read, Selection
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError, DataError
from vitrine.plan import planner
from vitrine.plan.planner import Prepared

LIMITING_FINDINGS = frozenset({"ROW_SECURITY", "NULL_CURSOR", "NULL_CURSOR_UNKNOWN"})
"""Codes of findings about rows that the source does not return, and which therefore are not compared."""

KEYS_NAMED = 5
"""Keys in quarantine that are named; of more, only the number is."""


class Sides(Protocol):
    """Both sides of one comparison. Keys are in the common forms of their columns."""

    @property
    def wanted(self) -> Compare:
        """What both sides have in common."""
        ...

    @property
    def control(self) -> str:
        """The column whose lowest and highest value are compared."""
        ...

    @property
    def produced(self) -> Sequence[Column]:
        """The columns of the source, after the transforms."""
        ...

    @property
    def unreadable(self) -> Sequence[str]:
        """Columns that could not be compared, with the reasons."""
        ...

    @property
    def selects_ranges(self) -> bool:
        """Whether the digests of some ranges cost less than those of all."""
        ...

    def source(self, compare: Compare) -> Sequence[Digest]: ...

    def target(self, compare: Compare) -> Sequence[Digest]: ...

    def pair(self, compare: Compare) -> tuple[Sequence[Digest], Sequence[Digest]]:
        """The digests of source and target."""
        ...

    def stored(self, keys: Sequence[Key]) -> Sequence[Key]:
        """The keys of the rows that the target finds by these keys: equal values of a type may have several texts."""
        ...

    def keys_of(self, read: Read) -> Iterator[Key]:
        """The keys of a read, after the transforms."""
        ...

    def batches(self, read: Read) -> Iterator[Batch]:
        """The rows of a read, after the transforms."""
        ...

    def rows(self, keys: Sequence[Key]) -> Iterator[Batch]:
        """The rows of the source that have these keys, after the transforms; perhaps with others."""
        ...

    def of_rows(self, rows: Iterator[Batch], compare: Compare) -> Sequence[Digest]:
        """The digests of rows that `batches` or `rows` returned."""
        ...


Result = TypeVar("Result")

Values = Literal["all", "control", "key", "written"]
"""The columns whose values are compared: all that both sides have, the control column, those of the key, or all that a
run writes; where the target lacks one of these, every row of it holds NULL."""


def both(sides: Sides, ask: Callable[[Compare], Result]) -> Result:
    """The answer for the columns that both have in common; asked again if it was found that one cannot be compared."""
    while True:
        wanted = sides.wanted
        found = ask(wanted)
        if sides.wanted is wanted:
            return found


def open_sides(definition: Definition, built: Prepared, quarantined: Collection[str], values: Values = "all") -> Sides:
    """Both systems compute their own digests if they can and no transform stands between; else rows are streamed."""
    common = CommonColumns(definition, built, quarantined, values)
    if not built.plan.user_code:
        wanted = common.compare(built.source.columns)
        if are_computed(built.plan, wanted):
            marked = _marked(definition, built)
            return ComputedSides(built, wanted, common.control, _Produced(definition, built), marked)
    return StreamedSides(built, common, _Produced(definition, built))


def are_computed(plan: Plan, wanted: Compare) -> bool:
    """Whether both systems compute digests: values of one type are then compared by their text."""
    nothing = replace(wanted, only=())
    return plan.source.digest(nothing) is not None and plan.sink.digest(nothing) is not None


class CommonColumns:
    """The columns that both sides have, in the types of the source."""

    def __init__(self, definition: Definition, built: Prepared, quarantined: Collection[str], values: Values) -> None:
        self._plan = built.plan
        self._quarantined = quarantined
        self._values: Values = values
        self.control = definition.options.control_column or definition.incremental_key or built.plan.target.key[0]

    def compare(self, produced: Sequence[Column], *, exact: bool = True) -> Compare:
        stored = {column.name: column for column in self._plan.target.columns}
        common = {column.name: column for column in produced if column.name in stored}
        if self.control not in common and self._values in ("all", "control"):
            raise ConfigError(
                f"control column '{self.control}' is not in both source and target", code="CONTROL_COLUMN"
            )
        key = tuple(common[name] for name in self._plan.target.key if name in common)
        wanted = Compare(
            key=key,
            columns=self._compared(produced, common, key),
            control=common.get(self.control),
            # guarantee: J31
            forms={name: common_form(one.type, stored[name].type, exact=exact) for name, one in common.items()},
        )
        return replace(wanted, skipped=tuple(skipped_keys(self._quarantined, wanted)))

    def _compared(
        self, produced: Sequence[Column], common: Mapping[str, Column], key: tuple[Column, ...]
    ) -> tuple[Column, ...]:
        match self._values:
            case "all":
                return tuple(common.values())
            case "control":
                return (common.get(self.control, key[0]),)
            case "key":
                return key
            case "written":
                return tuple(produced)


class ComputedSides:
    """Each system computes its own digests."""

    selects_ranges = True

    def __init__(
        self, built: Prepared, wanted: Compare, control: str, produced: "_Produced", marked: Column | None
    ) -> None:
        self.wanted = wanted
        self.control = control
        self._marked = marked  # rows of the source that this column marks as deleted do not belong into the target
        self.produced: Sequence[Column] = built.source.columns
        self.unreadable: tuple[str, ...] = ()
        self._plan = built.plan
        self._rows = produced
        self._is_checked = False  # that every column can be compared

    def source(self, compare: Compare) -> Sequence[Digest]:
        return self._computed(replace(compare, marked=self._marked), self._plan.source.digest)

    def target(self, compare: Compare) -> Sequence[Digest]:
        return self._computed(compare, self._plan.sink.digest)

    def pair(self, compare: Compare) -> tuple[Sequence[Digest], Sequence[Digest]]:
        """Both systems compute at the same time."""
        with ThreadPoolExecutor(1, thread_name_prefix="source-digest") as thread:
            source = thread.submit(self._plan.source.digest, self._readable(replace(compare, marked=self._marked)))
            try:
                target = self._plan.sink.digest(self._readable(compare))
                return source.result() or (), target or ()
            except (ConfigError, DataError):
                wait([source])
            except BaseException:
                self._plan.source.cancel()  # a target that went away is reported at once
                raise
        return self.source(compare), self.target(compare)  # in turn: which of the columns cannot be compared?

    def stored(self, keys: Sequence[Key]) -> Sequence[Key]:
        return _stored_keys(self._plan, keys, self.wanted)

    def keys_of(self, read: Read) -> Iterator[Key]:
        return self._rows.keys(read, self.wanted)

    def batches(self, read: Read) -> Iterator[Batch]:
        return self._rows.batches(read)

    def rows(self, keys: Sequence[Key]) -> Iterator[Batch]:
        return self._rows.covered(replace(self.wanted, only=tuple(keys)))

    def of_rows(self, rows: Iterator[Batch], compare: Compare) -> Sequence[Digest]:
        return _digested(self._plan, rows, compare)

    def _computed(self, compare: Compare, digest: Callable[[Compare], Sequence[Digest] | None]) -> Sequence[Digest]:
        try:
            return digest(self._readable(compare)) or ()
        except (ConfigError, DataError):
            if self._is_checked or not (unreadable := self._unreadable()):
                raise
            self.unreadable = tuple(f"column '{name}' cannot be compared ({why})" for name, why in unreadable.items())
            self.wanted = _without(self.wanted, unreadable)
            return digest(self._readable(compare)) or ()

    def _readable(self, compare: Compare) -> Compare:
        names = {column.name for column in self.wanted.columns}
        return _without(compare, [column.name for column in compare.columns if column.name not in names])

    def _unreadable(self) -> dict[str, str]:
        """Columns whose values have no common form on one of the sides, each with the error."""
        self._is_checked = True
        found: dict[str, str] = {}
        for column in self.wanted.columns:
            one = replace(self.wanted, columns=(column,), control=None)
            try:
                self._plan.source.digest(one)
                self._plan.sink.digest(one)
            except (ConfigError, DataError) as exc:
                found[column.name] = str(exc)
        return found if len(found) < len(self.wanted.columns) else {}


class StreamedSides:
    """Rows as they were produced, beside the stored ones."""

    selects_ranges = False

    def __init__(self, built: Prepared, common: CommonColumns, rows: "_Produced") -> None:
        self.unreadable: tuple[str, ...] = ()
        self.control = common.control
        self._plan = built.plan
        self._rows = rows
        self.produced = rows.columns()
        self.wanted = common.compare(self.produced, exact=False)

    def source(self, compare: Compare) -> Sequence[Digest]:
        if compare.parts > 1:
            ranges = cut_rows(self._rows.covered(compare), compare)
            compare = replace(compare, parts=1, ranges=ranges)
        return _digested(self._plan, self._rows.covered(compare), compare)

    def target(self, compare: Compare) -> Sequence[Digest]:
        found = self._plan.sink.digest(compare)
        if found is not None:
            return found
        if compare.parts > 1:
            (keys,) = compare.ranges
            return digest_ordered(self._plan.sink.fetch(keys, self._fetched(compare)), compare)
        if compare.only is not None:
            return self._of_keys(compare, compare.only)
        stored = (
            batch for keys in _joined(compare.ranges) for batch in self._plan.sink.fetch(keys, self._fetched(compare))
        )
        return digest_rows(stored, compare)

    def pair(self, compare: Compare) -> tuple[Sequence[Digest], Sequence[Digest]]:
        return self.source(compare), self.target(compare)  # in turn: the sink may digest the rows of both

    def stored(self, keys: Sequence[Key]) -> Sequence[Key]:
        return _stored_keys(self._plan, keys, self.wanted)

    def keys_of(self, read: Read) -> Iterator[Key]:
        return self._rows.keys(read, self.wanted)

    def batches(self, read: Read) -> Iterator[Batch]:
        return self._rows.batches(read)

    def rows(self, keys: Sequence[Key]) -> Iterator[Batch]:
        return self._rows.covered(replace(self.wanted, only=tuple(keys)))

    def of_rows(self, rows: Iterator[Batch], compare: Compare) -> Sequence[Digest]:
        return _digested(self._plan, rows, compare)

    def _of_keys(self, compare: Compare, keys: Sequence[Key]) -> Sequence[Digest]:
        """A row that was stored by hand may not be found by its key, but only among the others."""
        columns = self._fetched(compare)
        found = digest_rows(self._plan.sink.fetch(keys, columns), compare)
        present = {one.range.low for one in found}
        missed = [key for key in keys if key not in present] if compare.by_key else []
        around = (KeyRange(key, next_key(key, compare.key)) for key in missed)
        return [*found, *digest_rows((b for one in around for b in self._plan.sink.fetch(one, columns)), compare)]

    def _fetched(self, compare: Compare) -> Sequence[Column]:
        """The compared columns, and those of the key."""
        return [*compare.columns, *(column for column in compare.key if column not in compare.columns)]


def _stored_keys(plan: Plan, keys: Sequence[Key], wanted: Compare) -> Sequence[Key]:
    wanted_keys = [key for key in keys if NULL not in key]
    try:
        return [key for key, _ in rows_of(plan.sink.fetch(wanted_keys, wanted.key), wanted)]
    except (ConfigError, DataError):  # a value that the type of the target cannot hold
        return ()


def _digested(plan: Plan, rows: Iterator[Batch], compare: Compare) -> Sequence[Digest]:
    """By the sink, which knows the values of its types, or here."""
    return plan.sink.digest(compare, rows) or digest_rows(rows, compare)


class _Produced:
    """The rows of the source, after its transforms."""

    def __init__(self, definition: Definition, built: Prepared) -> None:
        self._built = built
        self._plan: Plan = built.plan
        self._throttle = Throttle(planner.limits_of(definition, built.lane))
        self._started: Iterator[Batch] | None = None  # a stream of all rows whose first batch was looked at

    def columns(self) -> Sequence[Column]:
        """Those of the first row; without any row, those of the source."""
        rows = self.everything()
        first = next(rows, None)
        self._started = chain([first], rows) if first else iter(())
        return first.columns if first else self._built.source.columns

    def covered(self, compare: Compare) -> Iterator[Batch]:
        """At least the rows that the comparison covers: all, or only those where the source can select them."""
        started, self._started = self._started, None
        if started is not None:
            return started
        if not self._can_select or (compare.only is None and compare.ranges == (ALL_KEYS,)):
            return self.everything()
        chosen: Iterable[Selection] = [compare.only] if compare.only is not None else _joined(compare.ranges)
        reads = (Read(self._text_lane, self._plan.target.key, only=one) for one in chosen)
        return (batch for read in reads for batch in self.batches(read))

    def batches(self, read: Read) -> Iterator[Batch]:
        for batch in self._plan.source.batches(replace(read, lane=self._text_lane), self._throttle):
            transformed = batch
            for transform in self._plan.transforms:
                transformed = transform(transformed)
            if transformed.count or transformed.deleted:
                yield transformed

    def keys(self, read: Read, wanted: Compare) -> Iterator[Key]:
        """Also those of rows that are marked as deleted."""
        forms = [wanted.form_of(column) for column in wanted.key]
        for batch in self.batches(read):
            yield from (key for key, _ in rows_of([batch], wanted))
            yield from (in_forms(key, forms) for key in batch.deleted)

    def everything(self) -> Iterator[Batch]:
        """All rows, independent of the checkpoint."""
        incremental, skip_null = self._plan.incremental, self._plan.skip_null
        return self.batches(
            Read(self._plan.lane, self._plan.order, skip_null=skip_null and incremental, complete=not incremental)
        )

    @property
    def _can_select(self) -> bool:
        """Whether the key of a row is that of the source, and no row is left out for another reason."""
        is_limited = self._plan.incremental and self._plan.skip_null
        names = {column.name for column in self._built.source.columns}
        return not (self._plan.user_code or is_limited) and names.issuperset(self._plan.target.key)

    @property
    def _text_lane(self) -> Lane:
        """Binary rows have no text."""
        return Lane.TEXT if self._plan.lane is Lane.COPY else self._plan.lane


def produced_rows(definition: Definition, built: Prepared) -> Iterator[Batch]:
    """All rows of the source, after its transforms."""
    return _Produced(definition, built).everything()


def left_out(
    definition: Definition, built: Prepared, quarantined: Collection[str], wanted: Compare, produced: Sequence[Column]
) -> Iterator[str]:
    """What is not compared, one sentence each."""
    if quarantined:
        named = ", ".join(sorted(quarantined)[:KEYS_NAMED])
        more = f" and {len(quarantined) - KEYS_NAMED} more" if len(quarantined) > KEYS_NAMED else ""
        yield f"{len(quarantined)} key(s) in quarantine are not compared: {named}{more}"
    if unknown := len(quarantined) - len(wanted.skipped):
        yield f"{unknown} of the keys in quarantine have an ambiguous text, so their rows are compared"
    if built.plan.incremental and definition.options.on_null_cursor == "ignore":
        names = " or ".join(f"'{name}'" for name in built.plan.order)
        yield f"rows with NULL in {names} are not compared (options.on_null_cursor: ignore)"
    stored = [column.name for column in built.plan.target.columns]
    names = [column.name for column in produced]
    if only_stored := [name for name in stored if name not in names]:
        yield f"column(s) {', '.join(only_stored)} are not compared: only the target has them"
    if only_produced := [name for name in names if name not in stored]:
        yield f"column(s) {', '.join(only_produced)} are not compared: only the source has them"
    yield from (one.text for one in built.source.findings if one.code in LIMITING_FINDINGS)


def _joined(ranges: Sequence[KeyRange]) -> Iterator[KeyRange]:
    """The ranges, with neighbours as one."""
    current: KeyRange | None = None
    for keys in ranges:
        if current is not None and current.high is not None and current.high == keys.low:
            current = KeyRange(current.low, keys.high)
            continue
        if current is not None:
            yield current
        current = keys
    if current is not None:
        yield current


def _without(wanted: Compare, names: Collection[str]) -> Compare:
    if not names:
        return wanted
    control = wanted.control if wanted.control and wanted.control.name not in names else None
    columns = tuple(column for column in wanted.columns if column.name not in names)
    return replace(wanted, columns=columns, control=control)


def skipped_keys(quarantined: Iterable[str], wanted: Compare) -> Iterator[Key]:
    """The keys in quarantine, in the common forms of their columns."""
    forms = [wanted.form_of(column) for column in wanted.key]
    return (in_forms(key, forms) for key in quarantined_keys(quarantined, len(forms)))


def in_forms(key: Key, forms: Sequence[CommonForm]) -> Key:
    """A key in the common forms of its columns."""
    return tuple(canonical(value, form) or "" for value, form in zip(key, forms, strict=True))


def _marked(definition: Definition, built: Prepared) -> Column | None:
    name = definition.options.delete_column if definition.options.drops_marked_rows else None
    return next((column for column in built.source.columns if column.name == name), None)


def quarantined_keys(quarantined: Iterable[str], width: int) -> Iterator[Key]:
    """The keys of rejects; those whose text is ambiguous are skipped."""
    return (key for key in (_key_of(text, width) for text in quarantined) if key is not None)


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
