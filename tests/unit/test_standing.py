"""Where a row stands, from the facts about it."""

from dataclasses import replace
from itertools import product

import pytest

from vitrine.compare.trace import Facts, Standing, judge

MOVING = Facts("films", "analytics.films", ("id",), incremental=True, cursor_column="modified")
ROW = replace(MOVING, source_rows=1, produced_rows=1)
STORED = replace(ROW, in_target=True)
DIFFERENT = replace(STORED, differing=("title",))
EXTRA = replace(MOVING, in_target=True)
PAUSED = "the pipeline is paused since 12:00; resume it to continue"
FULL = {"incremental": False, "read_next": True}


@pytest.mark.parametrize(
    ("facts", "standing", "sentence", "remedy"),
    [
        (STORED, "equal", "the row of analytics.films equals the source", None),
        (replace(STORED, produced_rows=2), "equal", "has one of the 2 rows", None),
        (replace(STORED, halted=PAUSED), "equal", "equals", None),
        (replace(MOVING, source_rows=1, marked=True), "equal", "the source marks the row as deleted", None),
        (replace(DIFFERENT, read_next=True), "waiting", "in title, and its cursor is after", "`vitrine run films`"),
        (replace(ROW, read_next=True), "waiting", "is not in analytics.films, and its cursor", "`vitrine run films`"),
        (replace(ROW, read_next=True, target_exists=False), "waiting", "which does not exist yet", "`vitrine run"),
        (replace(ROW, target_exists=False, target_lost=True), "missing", "it was dropped or renamed", "--full`"),
        (replace(ROW, read_next=True, target_lost=True), "missing", "does not build it again", "--full`"),
        (replace(DIFFERENT, **FULL), "waiting", "the next run loads every row again", "`vitrine run films`"),
        (replace(DIFFERENT, read_next=True, halted=PAUSED), "blocked", f"no run starts: {PAUSED}", "--resend"),
        (replace(DIFFERENT, quarantine="too long"), "quarantined", "is in quarantine: too long", "--replay"),
        (replace(ROW, quarantine="x", read_next=True), "quarantined", "the next run reads it again", "--replay"),
        (DIFFERENT, "cursor_not_moved", "in title, but the checkpoint has passed its 'modified'", "--resend"),
        (replace(DIFFERENT, halted=PAUSED), "cursor_not_moved", "the checkpoint has passed", "--resend"),
        (replace(DIFFERENT, differing=tuple("abcdef")), "cursor_not_moved", "in 6 columns", "--resend"),
        (replace(EXTRA, source_rows=1, marked=True), "cursor_not_moved", "marked as deleted at the source", "--resend"),
        (ROW, "missing", "is not in analytics.films, although the checkpoint has passed", "--resend"),
        (EXTRA, "deleted_at_source", "delete_mode is none, so no run removes it", "--resend --delete"),
        (replace(EXTRA, delete_mode="soft_column"), "deleted_at_source", "follows marks only", "--resend --delete"),
        (replace(EXTRA, delete_mode="reconcile_keys"), "deleted_at_source", "compares the keys", "`vitrine run"),
        (replace(EXTRA, **FULL), "deleted_at_source", "the next load removes it", "`vitrine run films`"),
        (replace(EXTRA, **FULL, halted=PAUSED), "deleted_at_source", "no run starts", "--resend"),
        (
            replace(MOVING, source_rows=1, filtered_by="no_drafts"),
            "filtered",
            "'no_drafts' returns no row",
            "change",
        ),
        (replace(MOVING, source_rows=1, other_keys=True), "filtered", "rows of other keys", "change the transform"),
        (replace(EXTRA, source_rows=1, filtered_by="f"), "filtered", "still has the row of an earlier run", "--delete"),
        (replace(ROW, failure="it raised KeyError"), "transform_fails", "it raised KeyError", "correct the transform"),
        (replace(ROW, produced_rows=2), "repeated", "on_duplicate_key: fail refuses them", "make the key unique"),
        (replace(DIFFERENT, produced_rows=2, keeps_last=True), "repeated", "has none of them", "make the key unique"),
        (replace(ROW, null_cursor=True), "null_cursor", "its cursor is NULL", "give it a value"),
        (MOVING, "not_found", "neither the source nor analytics.films", "column(s) id"),
    ],
)
def test_the_reason_is_named_with_its_remedy(facts: Facts, standing: str, sentence: str, remedy: str | None) -> None:
    found = judge(facts)
    assert found.standing == standing
    assert sentence in found.sentence
    assert (found.remedy is None) == (remedy is None)
    assert (remedy or "") in (found.remedy or "")


def test_every_combination_of_facts_has_a_verdict_and_only_an_equal_row_needs_no_remedy() -> None:
    flags = ("in_target", "read_next", "null_cursor", "marked", "incremental")
    seen: set[Standing] = set()
    for values in product((False, True), repeat=len(flags)):
        for rows, made, differing in product((0, 1, 2), (0, 1, 2), ((), ("title",))):
            given = dict(zip(flags, values, strict=True))
            verdict = judge(replace(MOVING, **given, source_rows=rows, produced_rows=made, differing=differing))
            assert (verdict.remedy is None) == (verdict.standing is Standing.EQUAL)
            seen.add(verdict.standing)
    assert seen == set(Standing) - {Standing.BLOCKED, Standing.QUARANTINED, Standing.TRANSFORM_FAILS}
