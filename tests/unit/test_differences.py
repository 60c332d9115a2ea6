"""The search for differing keys: exact whatever the sizes of ranges, and no more rows than needed key by key."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from vitrine.compare import differences
from vitrine.compare.digests import cut_rows, digest_ordered, digest_rows
from vitrine.core.copytext import values
from vitrine.core.keys import next_key, rank
from vitrine.core.rows import Batch, Column, Compare, Digest, Key, KeyRange, Position, Read, TextRows

ID, NOTE = Column("id", "integer"), Column("note", "text")
WANTED = Compare((ID,), (ID, NOTE))

Rows = dict[int, str]


def batches(rows: Rows, *, shuffled: bool = False) -> list[Batch]:
    items = sorted(rows.items())
    if shuffled:
        random.Random(1).shuffle(items)
    text = "".join(f"{number}\t{values.escape(note)}\n" for number, note in items)
    return [Batch(TextRows(text.encode(), len(items)), (ID, NOTE), None, Position())] if items else []


@dataclass
class FakeSides:
    """Two tables in memory; counts the rows that were compared key by key."""

    ours: Rows
    theirs: Rows
    wanted: Compare = WANTED
    control: str = "id"
    produced: Sequence[Column] = (ID, NOTE)
    unreadable: Sequence[str] = ()
    selects_ranges: bool = True
    compared: list[int] = field(default_factory=list[int])

    def source(self, compare: Compare) -> Sequence[Digest]:
        rows = batches(self.ours, shuffled=True)
        if compare.parts > 1:
            compare = replace(compare, parts=1, ranges=cut_rows(rows, compare))
        return self._counted(digest_rows(rows, compare), compare)

    def target(self, compare: Compare) -> Sequence[Digest]:
        rows = batches(self.theirs)
        found = digest_ordered(rows, compare, 50) if compare.parts > 1 else digest_rows(rows, compare)
        return self._counted(found, compare)

    def pair(self, compare: Compare) -> tuple[Sequence[Digest], Sequence[Digest]]:
        return self.source(compare), self.target(compare)

    def stored(self, keys: Sequence[Key]) -> Sequence[Key]:
        raise NotImplementedError

    def keys_of(self, read: Read) -> Iterator[Key]:
        raise NotImplementedError

    def batches(self, read: Read) -> Iterator[Batch]:
        raise NotImplementedError

    def rows(self, keys: Sequence[Key]) -> Iterator[Batch]:
        raise NotImplementedError

    def of_rows(self, rows: Iterator[Batch], compare: Compare) -> Sequence[Digest]:
        raise NotImplementedError

    def _counted(self, found: Sequence[Digest], compare: Compare) -> Sequence[Digest]:
        if compare.by_key:
            self.compared.append(sum(one.rows for one in found))
        return found


def numbers(keys: Sequence[Key]) -> list[int]:
    return sorted(int(key[0]) for key in keys)


def test_every_difference_is_found_with_its_columns_and_nothing_else() -> None:
    source = {number: f"note {number}" for number in range(1, 2001)}
    target = dict(source)
    del target[7], target[1999]
    target[3000] = "extra"
    target[0] = "extra"
    target[500] = "changed"
    sides = FakeSides(source, target)
    found = differences.find(sides)
    assert numbers(found.differences.missing) == [7, 1999]
    assert numbers(found.differences.extra) == [0, 3000]
    assert found.differences.different == {("500",): ("note",)}
    assert (found.source_rows, found.target_rows, found.complete) == (2000, 2000, True)
    assert sum(sides.compared) < 2 * 400  # only rows near a difference


@pytest.mark.parametrize("rows_at_once", [5, 50, 10_000])
@pytest.mark.parametrize("seed", range(6))
def test_random_tables_differ_by_exactly_the_changed_keys(seed: int, rows_at_once: int) -> None:
    chance = random.Random(seed)
    source = {chance.randrange(100_000): str(chance.random()) for _ in range(chance.choice([0, 1, 100, 400]))}
    target = dict(source)
    keys = list(source)
    missing = set(chance.sample(keys, min(len(keys), chance.randrange(20))))
    different = set(chance.sample(keys, min(len(keys), chance.randrange(20)))) - missing
    extra = {200_000 + number for number in range(chance.choice([0, 3, 150]))}
    for key in missing:
        del target[key]
    target |= dict.fromkeys(different, "changed") | dict.fromkeys(extra, "extra")
    found = differences.find(FakeSides(source, target), rows_at_once=rows_at_once).differences
    assert set(numbers(found.missing)) == missing
    assert set(numbers(found.extra)) == extra
    assert set(numbers(tuple(found.different))) == different


def test_an_empty_target_and_an_empty_source_are_compared() -> None:
    rows = {number: "n" for number in range(700)}
    assert len(differences.find(FakeSides(rows, {}), rows_at_once=100).differences.missing) == 700
    assert len(differences.find(FakeSides({}, rows), rows_at_once=100).differences.extra) == 700
    assert differences.find(FakeSides({}, {})).differences.count == 0


def test_a_search_with_very_many_differences_ends_early_and_says_so() -> None:
    found = differences.find(FakeSides({number: "n" for number in range(5000)}, {}), most_keys=500, rows_at_once=200)
    assert not found.complete
    assert 500 <= found.differences.count < 1500


def test_keys_are_checked_once_more_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "KEYS_AT_ONCE", 2)
    sides = FakeSides({1: "a", 2: "b", 3: "c"}, {1: "a", 2: "x"})
    found = differences.check(sides, [("1",), ("2",), ("3",), ("4",)])
    assert found == differences.Differences(missing=(("3",),), different={("2",): ("note",)})


def test_two_rows_of_one_key_differ_from_one() -> None:
    twice = Batch(TextRows(b"1\ta\n1\ta\n", 2), (ID, NOTE), None, Position())
    (found,) = digest_rows([twice], replace(WANTED, by_key=True))
    assert (found.range, found.rows) == (KeyRange(("1",)), 2)
    assert found.columns[1] == 2 * digest_rows(batches({1: "a"}), replace(WANTED, by_key=True))[0].columns[1]


def test_rows_in_any_order_are_cut_into_ranges_that_have_every_key_once() -> None:
    rows = {number * 3: "n" for number in range(1000)}
    ranges = cut_rows(batches(rows, shuffled=True), replace(WANTED, parts=10))
    assert len(ranges) > 5
    assert sum(one.rows for one in digest_rows(batches(rows), replace(WANTED, ranges=ranges))) == 1000


def test_ordered_rows_are_cut_even_if_some_are_out_of_order() -> None:
    text = b"".join(b"%d\tn\n" % number for number in (*range(200), 50, 150, 300))
    parts = digest_ordered([Batch(TextRows(text, 203), (ID, NOTE), None, Position())], WANTED, 40)
    assert len(parts) > 3
    assert sum(part.rows for part in parts) == 203
    again = digest_rows(
        batches({**dict.fromkeys(range(200), "n"), 300: "n"}), replace(WANTED, ranges=tuple(p.range for p in parts))
    )
    assert [one.rows for one in again] != []
    assert sum(one.rows for one in again) == 201


@pytest.mark.parametrize(
    ("key", "columns"),
    [(("7",), (ID,)), (("a",), (NOTE,)), (("a", "-3"), (NOTE, ID)), (("NaN",), (Column("n", "numeric"),))],
)
def test_the_next_key_is_above(key: Key, columns: tuple[Column, ...]) -> None:
    assert rank(next_key(key, columns), columns) >= rank(key, columns)


def test_a_text_that_is_no_number_is_ordered_after_all_numbers() -> None:
    assert rank(("zzz",), (ID,)) > rank(("999999",), (ID,))
    assert rank(("",), (ID,)) > rank(("0",), (ID,))


def test_keys_that_are_not_confirmed_do_not_end_the_search() -> None:
    sides = FakeSides({number: "n" for number in range(1000)}, {})

    def confirm(keys: Sequence[Key]) -> tuple[differences.Differences, int]:
        kept = tuple(key for key in keys if key == ("999",))
        return differences.Differences(missing=kept), len(keys) - len(kept)

    found = differences.find(sides, confirm, most_keys=100, rows_at_once=50)
    assert (found.differences.missing, found.waiting, found.complete) == ((("999",),), 999, True)
