"""Decides where one row stands between its source and its target, in a sentence with the remedy."""

from dataclasses import dataclass
from enum import StrEnum

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
