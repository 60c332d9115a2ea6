"""What a changed definition would do to its mart as of now; nothing is written."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vitrine.compare import row_changes
from vitrine.compare.comparison import Sides, left_out, open_sides, produced_rows
from vitrine.compare.row_changes import Budget, RowChanges
from vitrine.core.loop import check_state
from vitrine.core.rows import START, Column, Compare, Finding, Position, Read, State, TargetInfo, bare_type
from vitrine.definition.model import Definition, Mode
from vitrine.errors import VitrineError
from vitrine.plan import planner, validation
from vitrine.plan.planner import CheckedDefinition, Prepared
from vitrine.store.state import BLANK, StoredState

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


RunName = Literal["next", "keep", "reset", "full"]
"""The next run, as it is or with the given `state`; or a full run, which is asked for."""

REBUILD_CURES = frozenset({"TARGET_SCHEMA"})
"""Codes of findings that do not concern a load which replaces the target as a whole."""


@dataclass(frozen=True)
class Known:
    """What the store knows of the pipeline."""

    state: StoredState = BLANK
    quarantined: Collection[str] = ()
    deletes_due: bool = False  # the next run compares the keys of both sides, and deletes what vanished


@dataclass(frozen=True)
class Counted:
    """Rows that were compared, or the reason why they were not."""

    rows: RowChanges | None = None
    reason: str | None = None


@dataclass(frozen=True)
class RunForecast:
    """What one run would do."""

    run: RunName
    reads: Literal["everything", "changes"]
    rows: RowChanges | None = None  # None: not counted, see `reason`
    removed: int | None = None  # rows that it deletes; None: not counted
    kept: int | None = None  # rows of the mart that the source lacks, and that stay; None: not counted
    written: int | None = None  # rows that it writes; None: not counted
    refused: str | None = None  # why it would fail
    reason: str | None = None  # why rows were not counted


@dataclass(frozen=True)
class Forecast:
    """What a definition would do to its mart."""

    target: TargetInfo
    produced: tuple[Column, ...]  # columns of the rows; empty: those of a transform are not known
    columns: tuple[ColumnChange, ...]
    runs: tuple[RunForecast, ...]
    findings: tuple[Finding, ...]  # also the fatal ones, for which a run is refused
    rows_expected: int | None
    left_out: tuple[str, ...] = ()  # what is not compared, one sentence each

    @property
    def refusals(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.fatal)


def forecast(checked: CheckedDefinition, known: Known, wanted: Sequence[RunName], budget: Budget) -> Forecast:
    """What each of the runs would do; ConfigError if the definition cannot be read at all."""
    built = planner.prepare(checked, writes=False)
    try:
        with budget.cancelling(checked.cancel):
            return _Forecaster(checked.definition, built, known, budget).forecast(wanted)
    finally:
        built.close()


class _Forecaster:
    """The forecast of one definition."""

    def __init__(self, definition: Definition, built: Prepared, known: Known, budget: Budget) -> None:
        self._definition = definition
        self._built = built
        self._known = known
        self._budget = budget
        self._findings = tuple(validation.findings_of(definition, built))
        self._sides: Sides | None = None  # None: they cannot be compared
        self._reason: str | None = None  # why not
        # the columns by which the last of several rows with one key is known; None: such rows are refused
        newest = (definition.incremental_key, definition.tie_breaker)
        self._newest_by = tuple(name for name in newest if name) if built.plan.last_wins else None

    @property
    def _target(self) -> TargetInfo:
        return self._built.plan.target

    def forecast(self, wanted: Sequence[RunName]) -> Forecast:
        self._open()
        runs = tuple(self._runs(wanted))
        produced = self._produced
        refusals = [finding for finding in self._findings if finding.fatal]
        return Forecast(
            target=self._target,
            produced=tuple(produced),
            columns=tuple(compare_columns(self._definition, self._target, produced, refusals) if produced else ()),
            runs=runs,
            findings=self._findings,
            rows_expected=self._built.source.rows_expected,
            left_out=tuple(self._left_out()),
        )

    def _open(self) -> None:
        """Both sides, if the mart exists and has the key."""
        stored = {column.name for column in self._target.columns}
        if not self._target.exists:
            return
        if lacking := [name for name in self._target.key if name not in stored]:
            self._reason = f"the mart has no column '{lacking[0]}', which is in the key"
            return
        try:
            self._sides = open_sides(self._definition, self._built, self._known.quarantined, "written")
        except VitrineError as exc:
            self._reason = self._why(exc)
            return
        if self._built.plan.user_code:  # the columns that transforms return are known only now
            found = self._built.plan.sink.describe(self._sides.produced).findings
            others = [one for one in self._findings if one not in self._target.findings]
            self._findings = (*found, *others)

    @property
    def _produced(self) -> Sequence[Column]:
        if self._sides is not None:
            return self._sides.produced
        return () if self._built.plan.user_code else self._built.source.columns

    def _left_out(self) -> Iterator[str]:
        """Columns of one side only are reported as changes."""
        if self._sides is None:
            return
        sides, names = self._sides, [column.name for column in self._target.columns]
        common = [column for column in sides.produced if column.name in names]
        sentences = left_out(self._definition, self._built, self._known.quarantined, sides.wanted, common)
        yield from (text for text in sentences if not text.endswith("only the target has them"))
        yield from sides.unreadable

    # -- runs -----------------------------------------------------------------------------------------------------

    def _runs(self, wanted: Sequence[RunName]) -> Iterator[RunForecast]:
        # changes first: they are few, and the comparison of everything may take all of the time
        position, refused = self._known.state.position, self._refusal("keep")
        changes = {run: Counted() if refused else self._changes(position) for run in wanted if self._reads_changes(run)}
        everything = self._everything(is_refused=all(self._refusal(run) for run in wanted))
        for run in wanted:
            if run in changes:
                yield self._of_changes(run, changes[run], everything)
            else:
                yield self._of_everything(run, everything)

    def _reads_changes(self, run: RunName) -> bool:
        is_next = run in ("next", "keep")
        return self._built.plan.incremental and is_next and self._known.state.has_checkpoint

    def _refusal(self, run: RunName) -> str | None:
        """Why a run cannot begin."""
        made, state = self._built.plan, self._known.state
        if run == "full" and self._built.source.filtered is not None:
            return f"a full run would not read the whole source: {self._built.source.filtered}"
        is_rebuilt = self._target.rewrites and self._loads(run)
        fatal = [one for one in self._findings if one.fatal and not (is_rebuilt and one.code in REBUILD_CURES)]
        if fatal:
            return "; ".join(finding.text for finding in fatal)
        if self._reads_changes(run):
            try:
                check_state(made, State(state.position, state.cursor_types, identity=state.identity))
            except VitrineError as exc:
                return str(exc)
        return None

    def _loads(self, run: RunName) -> bool:
        """Whether it replaces the contents of the mart, so that what vanished at the source is removed."""
        return not self._built.plan.incremental or run == "full" or not self._target.exists

    def _of_changes(self, run: RunName, found: Counted, everything: Counted) -> RunForecast:
        all_removed = everything.rows.removed if everything.rows else None
        removed = found.rows.removed if found.rows else None
        if self._known.deletes_due:
            removed = all_removed
        kept = None if removed is None or all_removed is None else max(0, all_removed - removed)
        return self._finished(RunForecast(run, "changes", found.rows, removed, kept, reason=found.reason), everything)

    def _of_everything(self, run: RunName, found: Counted) -> RunForecast:
        rows = found.rows
        removed = kept = None
        if rows is not None:
            is_complete = self._loads(run) or self._known.deletes_due
            removed = rows.removed if is_complete else self._marked()
            kept = None if removed is None else max(0, rows.removed - removed)
        return self._finished(RunForecast(run, "everything", rows, removed, kept, reason=found.reason), found)

    def _finished(self, found: RunForecast, everything: Counted) -> RunForecast:
        refused = self._refusal(found.run)
        rows = found.rows
        if refused is not None or rows is None:
            return RunForecast(found.run, found.reads, refused=refused, reason=None if refused else found.reason)
        counted: RowChanges | None = rows
        if self._built.plan.last_wins and not self._loads(found.run) and found.reads == "everything":
            counted = self._changes(START).rows  # a key that several batches have is written by each of them
        written = _written(counted, self._target) if counted and counted.method == rows.method else None
        return replace(found, written=written, refused=self._failure(found, rows, everything))

    def _failure(self, found: RunForecast, rows: RowChanges, everything: Counted) -> str | None:
        """Why a run would fail for the rows that were counted."""
        options = self._definition.options
        if rows.repeated and options.on_duplicate_key == "fail":
            return (
                f"the source returns at least {rows.repeated} key(s) more than once (DUPLICATE_KEY); correct the query,"
                " or set options.on_duplicate_key: last"
            )
        is_load, before = self._loads(found.run), everything.rows.target_rows if everything.rows else None
        if before is None or found.removed is None or not (is_load or self._known.deletes_due):
            return None
        if is_load:
            lost = max(0, before - (rows.rows - rows.skipped)) if self._target.guards_number else found.removed
        else:  # the keys are compared when the rows of the run are written
            lost, before = found.removed, before + rows.added
        if before and lost > before * options.max_delete_ratio:
            return (
                f"it would delete {lost:,} of {before:,} rows, more than max_delete_ratio"
                f" {options.max_delete_ratio:g} allows (SHRINK_GUARD); if that is right, run once with allow_shrink"
            )
        return None

    # -- rows -----------------------------------------------------------------------------------------------------

    def _changes(self, position: Position) -> Counted:
        """From a position on."""
        read = self._read(position)
        return self._counted(
            lambda: self._compared(lambda sides: row_changes.compare_read(sides, read, self._budget, self._newest_by))
        )

    def _everything(self, *, is_refused: bool) -> Counted:
        if is_refused:
            return Counted()
        if not self._target.exists:
            return self._counted(self._first_load)
        expected = self._built.source.rows_expected
        return self._counted(
            lambda: self._compared(
                lambda sides: row_changes.compare_all(sides, self._budget, expected, self._newest_by)
            )
        )

    def _compared(self, compare: Callable[[Sides], RowChanges]) -> RowChanges | None:
        return None if self._sides is None else compare(self._sides)

    def _counted(self, count: Callable[[], RowChanges | None]) -> Counted:
        try:
            rows = count()
        except VitrineError as exc:
            return Counted(reason=self._why(exc))
        return Counted(rows, reason=self._reason if rows is None else None)

    def _why(self, error: VitrineError) -> str:
        if self._budget.is_over:
            return f"the rows could not be compared within {self._budget.seconds:g} s"
        return str(error)

    def _read(self, position: Position) -> Read:
        made = self._built.plan
        return Read(made.lane, made.order, position, skip_null=made.skip_null)

    def _marked(self) -> int | None:
        """Rows that a read of everything deletes, because the source marks them; None: not counted."""
        if not self._definition.options.drops_marked_rows:
            return 0
        sides = self._sides
        if sides is None:
            return None
        try:
            return row_changes.count_marked(sides, self._read(START), self._budget)
        except VitrineError:
            return None

    def _first_load(self) -> RowChanges:
        """All rows are added to a mart that does not exist."""
        made = self._built.plan
        if not made.transforms and not made.last_wins:
            key = tuple(column for column in self._built.source.columns if column.name in self._target.key)
            if (found := made.source.digest(Compare(key, key))) is not None:
                rows = sum(one.rows for one in found)
                return RowChanges(added=rows, rows=rows, target_rows=0, rows_compared=rows)
        produced = produced_rows(self._definition, self._built)
        return row_changes.count_rows(produced, self._budget, self._target.key if made.last_wins else None)


def _written(rows: RowChanges, target: TargetInfo) -> int:
    if target.rewrites:
        return rows.rows - rows.skipped
    return rows.added + rows.changed if rows.written is None else rows.written
