"""Traces one key: its row at the source, after each transform and in the target, and where it stands."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from vitrine.compare.comparison import are_computed, in_forms
from vitrine.compare.digests import Texts, digest_rows, fields_of, lines_of
from vitrine.compare.reconcile import refuse_made_keys
from vitrine.core import keys
from vitrine.core.copytext import values
from vitrine.core.keys import common_form
from vitrine.core.protocols import Limits, Plan, Throttle
from vitrine.core.rows import Batch, Column, Compare, Key, Lane, Position, Read, Reject, TextRows
from vitrine.errors import ConfigError, DataError
from vitrine.plan import planner
from vitrine.plan.planner import CheckedDefinition, Prepared

MANY_COLUMNS = 5
"""Differing columns that a sentence names; of more, only the number."""


class Standing(StrEnum):
    """Where a row stands. The names are part of the API."""

    EQUAL = "equal"
    WAITING = "waiting"  # the next run reads it
    BLOCKED = "blocked"  # the next run would read it, but none starts
    QUARANTINED = "quarantined"
    CURSOR_NOT_MOVED = "cursor_not_moved"  # it differs, and no run reads it
    MISSING = "missing"  # the target lacks it, and no run reads it
    DELETED_AT_SOURCE = "deleted_at_source"
    FILTERED = "filtered"  # a transform returns no row for it
    TRANSFORM_FAILS = "transform_fails"
    REPEATED = "repeated"  # the source returns its key more than once
    NULL_CURSOR = "null_cursor"
    NOT_FOUND = "not_found"


@dataclass(frozen=True)
class Facts:
    """What is known about one key, and about the pipeline as far as it matters for the key."""

    pipeline: str
    target: str
    key_columns: tuple[str, ...]
    incremental: bool
    cursor_column: str | None = None
    delete_mode: str = "none"
    keeps_last: bool = False  # of several rows with one key, the last is kept
    source_rows: int = 0
    produced_rows: int = 0  # after the transforms, with the same key
    in_target: bool = False
    target_exists: bool = True
    target_lost: bool = False  # it does not exist, although the pipeline has a checkpoint
    differing: tuple[str, ...] = ()  # columns
    read_next: bool = False  # the next run reads the row
    null_cursor: bool = False
    marked: bool = False  # the source marks the row as deleted
    filtered_by: str | None = None  # the transform that returned no row
    other_keys: bool = False  # the transforms return rows of other keys for it
    failure: str | None = None  # the error of a transform
    quarantine: str | None = None  # the reason why the row is in quarantine
    halted: str | None = None  # why no run starts


@dataclass(frozen=True)
class Verdict:
    standing: Standing
    sentence: str
    remedy: str | None = None  # None: there is nothing to do


def judge(facts: Facts) -> Verdict:
    """The first reason that explains the difference between source and target."""
    if not facts.source_rows:
        return _without_source(facts)
    if facts.failure is not None:
        return Verdict(
            Standing.TRANSFORM_FAILS,
            f"a transform fails on the row, so no run can write it: {facts.failure}",
            "correct the transform or the row, then run the pipeline",
        )
    if facts.produced_rows and facts.in_target and not facts.differing:
        return Verdict(Standing.EQUAL, _equal(facts))
    if facts.marked and not facts.in_target:
        return Verdict(Standing.EQUAL, f"the source marks the row as deleted, and {facts.target} does not have it")
    if facts.quarantine is not None:
        return _quarantined(facts)
    if facts.target_lost and facts.produced_rows:
        return _lost(facts)
    if facts.produced_rows > 1:
        return _repeated(facts)
    if not facts.produced_rows and not facts.marked and not facts.in_target:
        remedy = "change the transform or the row, if the row belongs into the target"
        return Verdict(Standing.FILTERED, f"{_filter(facts)}, so {facts.target} does not have it", remedy)
    if facts.null_cursor and facts.incremental:
        return _null_cursor(facts)
    if not facts.produced_rows and not facts.marked:
        return _filtered_later(facts)
    if facts.read_next:
        return _waiting(facts)
    return _unread(facts)


def _equal(facts: Facts) -> str:
    if facts.produced_rows > 1:
        return f"{facts.target} has one of the {facts.produced_rows} rows that the source returns for this key"
    return f"the row of {facts.target} equals the source"


def _without_source(facts: Facts) -> Verdict:
    if not facts.in_target:
        columns = ", ".join(facts.key_columns)
        return Verdict(
            Standing.NOT_FOUND,
            f"neither the source nor {facts.target} has a row with this key",
            f"check the key, which has the column(s) {columns}, and the conditions of the query",
        )
    sentence = f"only {facts.target} has the row: the source has deleted it, or the query does not return it any more"
    by_hand = "delete this key with --resend --delete"
    if not facts.incremental:
        return _halted(facts, Standing.DELETED_AT_SOURCE, f"{sentence}; the next load removes it", _run(facts))
    match facts.delete_mode:
        case "reconcile_keys":
            sentence += "; delete_mode: reconcile_keys removes it in the next run that compares the keys"
            return _halted(facts, Standing.DELETED_AT_SOURCE, sentence, f"{_run(facts)}, or {by_hand}")
        case "soft_column":
            sentence += "; delete_mode: soft_column follows marks only, and the row itself is gone"
        case _:
            sentence += "; delete_mode is none, so no run removes it"
    remedy = f"{by_hand}, ask for a full run, or set options.delete_mode: reconcile_keys"
    return Verdict(Standing.DELETED_AT_SOURCE, sentence, remedy)


def _quarantined(facts: Facts) -> Verdict:
    again = "; the next run reads it again" if facts.read_next and facts.incremental else ""
    return Verdict(
        Standing.QUARANTINED,
        f"the row does not fit {facts.target} and is in quarantine: {facts.quarantine}{again}",
        f"correct the row or the target, then `vitrine rejects {facts.pipeline} --replay`",
    )


def _lost(facts: Facts) -> Verdict:
    """A resend and the next run are refused: the table would have only the rows that they write."""
    return Verdict(
        Standing.MISSING,
        f"{facts.target} does not exist, although the pipeline has a checkpoint: it was dropped or renamed, and the"
        " next run does not build it again",
        f"ask for a full run with `vitrine run {facts.pipeline} --full`, or reset the state",
    )


def _repeated(facts: Facts) -> Verdict:
    sentence = f"the source returns {facts.produced_rows} rows for this key"
    if facts.keeps_last:
        return Verdict(
            Standing.REPEATED,
            f"{sentence}, and {facts.target} has none of them; on_duplicate_key: last keeps the last one",
            f"{_run(facts)}; if that does not help, make the key unique in the query",
        )
    return Verdict(
        Standing.REPEATED,
        f"{sentence}, and on_duplicate_key: fail refuses them",
        "make the key unique in the query, or set options.on_duplicate_key: last",
    )


def _null_cursor(facts: Facts) -> Verdict:
    return Verdict(
        Standing.NULL_CURSOR,
        f"the row {_difference(facts)}, and no run reads it, because its cursor is NULL ('{facts.cursor_column}', or"
        " the column that breaks ties)",
        "give it a value at the source, or send this key with --resend",
    )


def _filtered_later(facts: Facts) -> Verdict:
    """The transforms drop a row that they once returned: an upsert does not remove it."""
    sentence = f"{_filter(facts)}, but {facts.target} still has the row of an earlier run"
    if not facts.incremental:
        return _halted(facts, Standing.FILTERED, f"{sentence}; the next load removes it", _run(facts))
    return Verdict(Standing.FILTERED, sentence, "delete this key with --resend --delete, or ask for a full run")


def _filter(facts: Facts) -> str:
    if facts.other_keys:
        return "the transforms return rows of other keys for this row"
    by = f"transform '{facts.filtered_by}'" if facts.filtered_by else "the pipeline"
    return f"{by} returns no row for this key"


def _waiting(facts: Facts) -> Verdict:
    if facts.incremental:
        sentence = f"the row {_difference(facts)}, and its cursor is after the checkpoint: the next run reads it"
    else:
        sentence = f"the row {_difference(facts)}, and the next run loads every row again"
    return _halted(facts, Standing.WAITING, sentence, _run(facts))


def _unread(facts: Facts) -> Verdict:
    """It differs, and its cursor is not after the checkpoint."""
    cursor = f"'{facts.cursor_column}'"
    resend = "no run reads it again: send this key with --resend"
    if not facts.in_target:
        return Verdict(
            Standing.MISSING,
            f"the row {_difference(facts)}, although the checkpoint has passed its {cursor}: it was deleted from the"
            " target, or became visible at the source with an old value",
            resend,
        )
    what = "is marked as deleted at the source and still in the target" if facts.marked else _difference(facts)
    return Verdict(
        Standing.CURSOR_NOT_MOVED,
        f"the row {what}, but the checkpoint has passed its {cursor}: it changed without a new value there, or the"
        " target was changed by hand",
        f"{resend}, and let every change set {cursor}",
    )


def _halted(facts: Facts, standing: Standing, sentence: str, remedy: str) -> Verdict:
    """What the next run would correct, if one starts."""
    if facts.halted is None:
        return Verdict(standing, sentence, remedy)
    standing = Standing.BLOCKED if standing is Standing.WAITING else standing
    return Verdict(standing, f"{sentence}, but no run starts: {facts.halted}", "remove that reason, or use --resend")


def _difference(facts: Facts) -> str:
    if not facts.target_exists:
        return f"is not in {facts.target}, which does not exist yet"
    if not facts.in_target:
        return f"is not in {facts.target}"
    if facts.marked:
        return f"is marked as deleted, and {facts.target} still has it"
    if len(facts.differing) > MANY_COLUMNS:
        return f"differs from {facts.target} in {len(facts.differing)} columns"
    return f"differs from {facts.target} in {', '.join(facts.differing)}"


def _run(facts: Facts) -> str:
    return f"run the pipeline with `vitrine run {facts.pipeline}`, or wait for its next run"


ROWS_SHOWN = 20
"""Rows of one key that are followed; more of them have a mistake in common."""


@dataclass(frozen=True)
class TracedStep:
    """What one transform has made of the row."""

    transform: str
    rows: tuple[Texts, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Traced:
    """One key on its way from the source to the target."""

    key: Key  # as the row has it; as it was given if there is none
    source: tuple[Texts, ...]
    steps: tuple[TracedStep, ...]
    produced: tuple[Texts, ...]  # what the target should have
    target: tuple[Texts, ...]
    facts: Facts
    source_keys: tuple[Key, ...] = ()  # as the rows of the source have it
    target_keys: tuple[Key, ...] = ()
    candidates: tuple[Key, ...] = ()  # every text of the key
    refused: Reject | None = None  # the source cannot deliver the row
    compared: tuple[str, ...] = ()  # columns that both sides have
    not_compared: str | None = None  # why columns are compared by their texts only
    cursor: tuple[str | None, ...] | None = None  # of the row; None: the pipeline has no checkpoint


def look_up(checked: CheckedDefinition, key: Key, position: Position) -> Traced:
    """A difference is looked up twice: a run may have written between the two reads of the first time."""
    built = planner.prepare(checked, writes=False)
    try:
        _refuse(checked, built, key)
        first = _Lookup(checked, built, key).traced(position)
        return first if _is_settled(first.facts) else _Lookup(checked, built, key).traced(position)
    finally:
        built.close()


def _is_settled(facts: Facts) -> bool:
    return bool(facts.produced_rows) and facts.in_target and not facts.differing


def _refuse(checked: CheckedDefinition, built: Prepared, key: Key) -> None:
    wanted = built.plan.target.key
    if len(key) != len(wanted):
        raise ConfigError(
            f"the key of {checked.target} has the column(s) {', '.join(wanted)}, and {len(key)} value(s) were given;"
            " give one value for each, in this order",
            code="KEY_WIDTH",
        )
    if any("\0" in text for text in key):
        raise ConfigError("a key cannot contain the character NUL; check the key", code="KEY_VALUE")
    refuse_made_keys(built, "find the row with `vitrine reconcile --deep` instead")


@dataclass
class _Lookup:
    """One pass over both sides."""

    checked: CheckedDefinition
    built: Prepared
    given: Key
    source: list[Texts] = field(default_factory=list[Texts])
    steps: list[TracedStep] = field(default_factory=list[TracedStep])
    lines: list[str] = field(default_factory=list[str])  # produced rows of the key, in the text format
    columns: tuple[Column, ...] = ()  # of these
    marked: bool = False
    other_keys: bool = False
    refused: Reject | None = None

    def traced(self, position: Position) -> Traced:
        made, definition = self.built.plan, self.checked.definition
        self._read()
        produced = [dict(zip(self._names, fields_of(line), strict=True)) for line in self.lines]
        target = self._stored(produced)
        differing, reason = self._compare(produced, target)
        cursors = [tuple(row.get(name) for name in made.order) for row in self.source]
        failed = next((step for step in self.steps if step.error), None)
        emptied = next((step.transform for step in self.steps if not step.rows and not step.error), None)
        row = next(iter((*produced, *self.source, *target)), None)
        return Traced(
            key=self.given if row is None else self._key_of(row),
            source=tuple(self.source),
            steps=tuple(self.steps),
            produced=tuple(produced),
            target=tuple(target),
            source_keys=self._keys_of(self.source),
            target_keys=self._keys_of(target),
            candidates=(*self._candidates(), *self._keys_of((*produced, *self.source, *target))),
            refused=self.refused,
            compared=tuple(name for name in self._names if name in {one.name for one in made.target.columns}),
            not_compared=reason,
            cursor=cursors[0] if cursors and made.incremental else None,
            facts=Facts(
                pipeline=definition.name,
                target=made.target_name,
                key_columns=made.target.key,
                incremental=made.incremental,
                cursor_column=made.cursor_column,
                delete_mode=definition.options.delete_mode,
                keeps_last=made.last_wins,
                source_rows=len(self.source) or int(self.refused is not None),
                produced_rows=len(produced),
                in_target=bool(target),
                target_exists=made.target.exists,
                target_lost=made.incremental and not made.target.exists and position.cursor is not None,
                differing=differing,
                read_next=self._is_read_next(cursors, position),
                null_cursor=made.incremental and any(None in cursor for cursor in cursors),
                marked=self.marked,
                filtered_by=emptied if not produced else None,
                other_keys=self.other_keys and not produced,
                failure=failed.error if failed else None,
                quarantine=self.refused.reason if self.refused else None,
            ),
        )

    # -- the source, and the transforms -------------------------------------------------------------------------------

    def _read(self) -> None:
        made = self.built.plan
        self.steps = [TracedStep(task.name) for task in self.checked.tasks]
        read = Read(_lane(made), made.target.key, only=list(self._candidates()), limit=ROWS_SHOWN)
        for batch in self._batches(read):
            self.source += _texts(batch)
            self.refused = next(iter(batch.refused), self.refused)
            self._transform(batch)

    def _batches(self, read: Read) -> list[Batch]:
        try:
            return list(self.built.plan.source.batches(read, _throttle()))
        except DataError as exc:
            if exc.code == "READER_ERROR":
                raise
            columns = ", ".join(f"{one.name} {one.type}" for one in self._key_types())
            raise ConfigError(
                f"the row cannot be read by this key, whose columns are {columns}: {exc}; check the key",
                code="KEY_VALUE",
            ) from exc

    def _transform(self, batch: Batch) -> None:
        wanted = {self._key_of(row) for row in _texts(batch)}
        for at, transform in enumerate(self.built.plan.transforms):
            try:
                batch = transform(batch)
            except DataError as exc:
                if at >= len(self.steps):
                    raise
                self.steps[at] = replace(self.steps[at], error=str(exc))
                del self.steps[at + 1 :]
                return
            if at < len(self.steps):
                self.steps[at] = replace(self.steps[at], rows=(*self.steps[at].rows, *_texts(batch)))
        self.columns = batch.columns or self.columns
        self.marked |= bool(batch.deleted)
        for line in lines_of(batch) if batch.count else ():
            row = dict(zip(self._names, fields_of(line), strict=True))
            if self._key_of(row) in wanted:
                self.lines.append(line)
            else:
                self.other_keys = True

    def _is_read_next(self, cursors: Sequence[tuple[str | None, ...]], position: Position) -> bool:
        """Asked of the source: only it knows how it orders the values of the cursor."""
        made = self.built.plan
        if not made.incremental:
            return True
        complete = [tuple(text for text in cursor if text is not None) for cursor in cursors if None not in cursor]
        if not complete:
            return False
        read = Read(_lane(made), made.order, position, only=complete, skip_null=made.skip_null)
        # to the end: a read that is left earlier keeps its connection
        # guarantee: R9
        return any([batch.count for batch in made.source.batches(read, _throttle())])

    # -- the target ---------------------------------------------------------------------------------------------------

    def _stored(self, produced: Sequence[Texts]) -> list[Texts]:
        target = self.built.plan.target
        if not target.exists or not target.columns:
            return []
        wanted = self._keys_of((*produced, *self.source)) or tuple(dict.fromkeys(self._candidates()))
        if found := self._fetched(wanted):
            return found
        # a character(n) of the source is stored in a text without the spaces at its end
        types = {column.name: column.type for column in target.columns}
        forms = [common_form(one.type, types.get(one.name, one.type)) for one in self._key_types()]
        padded = tuple(dict.fromkeys(in_forms(key, forms) for key in wanted))
        return [] if padded == wanted else self._fetched(padded)

    def _fetched(self, wanted: Sequence[Key]) -> list[Texts]:
        made = self.built.plan
        return list(_rows(made.sink.fetch(wanted, made.target.columns)))[:ROWS_SHOWN]

    def _compare(self, produced: Sequence[Texts], target: Sequence[Texts]) -> tuple[tuple[str, ...], str | None]:
        """The columns in which the produced row that is most alike differs; and why only texts were compared."""
        if not produced or not target:
            return (), None
        try:
            return min((self._differing(line) for line in self.lines), key=len), None
        except (ConfigError, DataError) as exc:
            # a value that the target's types cannot hold
            found = [_differing_texts(row, target[0]) for row in produced]
            return min(found, key=len), str(exc)

    def _differing(self, line: str) -> tuple[str, ...]:
        """By the rules of a deep reconcile."""
        made = self.built.plan
        batch = Batch(TextRows(f"{line}\n".encode(), 1), self.columns, None, Position())
        wanted = self._compare_by_key()
        (ours, *_) = made.sink.digest(wanted, iter([batch])) or digest_rows([batch], wanted)
        theirs = made.sink.digest(replace(wanted, only=(ours.range.low or (),)))
        if theirs is None:
            key = self._key_of(dict(zip(self._names, fields_of(line), strict=True)))
            theirs = digest_rows(made.sink.fetch([key], wanted.columns), wanted)
        if not theirs:
            return made.target.key  # the same key, written in another way
        images = zip(wanted.columns, ours.columns, theirs[0].columns, strict=True)
        return tuple(column.name for column, source, stored in images if source != stored)

    def _compare_by_key(self) -> Compare:
        made = self.built.plan
        stored = {column.name: column for column in made.target.columns}
        common = {column.name: column for column in self.columns if column.name in stored}
        wanted = Compare(tuple(common[name] for name in made.target.key), tuple(common.values()), by_key=True)
        exact = not made.user_code and are_computed(made, wanted)
        forms = {name: common_form(one.type, stored[name].type, exact=exact) for name, one in common.items()}
        return replace(wanted, forms=forms)

    # -- keys ---------------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> list[str]:
        return [column.name for column in self.columns]

    def _key_of(self, row: Texts) -> Key:
        return tuple(row.get(name) or "" for name in self.built.plan.target.key)

    def _keys_of(self, rows: Iterable[Texts]) -> tuple[Key, ...]:
        return tuple(dict.fromkeys(map(self._key_of, rows)))

    def _key_types(self) -> list[Column]:
        types = {column.name: column for column in self.built.source.columns}
        return [types[name] for name in self.built.plan.target.key]

    def _candidates(self) -> Iterator[Key]:
        """The key as it was given, and as a row would have it: a uuid in small letters."""
        yield self.given
        try:
            pairs = zip(self.given, self._key_types(), strict=True)
            yield tuple(values.to_text(values.decoder(one.type)(values.escape(text))) for text, one in pairs)
        except (ValueError, ArithmeticError, values.UnreadableValue):
            return


def _texts(batch: Batch) -> list[Texts]:
    names = [column.name for column in batch.columns]
    return [dict(zip(names, fields_of(line), strict=True)) for line in lines_of(batch)] if batch.count else []


def _rows(batches: Iterable[Batch]) -> Iterator[Texts]:
    return (row for batch in batches for row in _texts(batch))


def _differing_texts(ours: Texts, theirs: Texts) -> tuple[str, ...]:
    return tuple(name for name, text in ours.items() if name in theirs and theirs[name] != text)


def _lane(made: Plan) -> Lane:
    """Binary rows have no text."""
    return Lane.TEXT if made.lane is Lane.COPY else made.lane


def _throttle() -> Throttle:
    return Throttle(Limits(batch_rows=ROWS_SHOWN))


def texts_of_reject(found: Traced) -> list[str]:
    """The texts under which the key may be in quarantine; an earlier version stored a key of one column as it is."""
    plain = (key[0] for key in found.candidates if len(key) == 1)
    return list(dict.fromkeys([*map(keys.to_text, found.candidates), *plain]))
