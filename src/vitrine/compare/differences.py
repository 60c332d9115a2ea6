"""Finds the keys that differ between two sides: by ranges first, then key by key in those that differ."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vitrine.compare.comparison import Sides, both
from vitrine.core.keys import chunks
from vitrine.core.rows import Compare, Digest, Key

PARTS = 1024
"""Ranges into which everything is cut, and again each range that is too large."""

ROWS_AT_ONCE = 20_000
"""Rows of differing ranges that are compared key by key at a time."""

KEYS_AT_ONCE = 5_000
"""Keys that one statement is given."""

MOST_KEYS = 100_000
"""After this many differing keys the search ends: a full run then costs less than a repair."""


@dataclass(frozen=True)
class Differences:
    """The keys that differ, in the common forms of their columns."""

    missing: tuple[Key, ...] = ()  # only the source has them
    extra: tuple[Key, ...] = ()  # only the target has them
    different: Mapping[Key, tuple[str, ...]] = field(default_factory=dict[Key, tuple[str, ...]])  # with the columns

    @property
    def count(self) -> int:
        return len(self.missing) + len(self.extra) + len(self.different)

    @property
    def keys(self) -> tuple[Key, ...]:
        return (*self.missing, *self.extra, *self.different)

    def without(self, keys: Iterable[Key]) -> "Differences":
        gone = frozenset(keys)
        return Differences(
            tuple(key for key in self.missing if key not in gone),
            tuple(key for key in self.extra if key not in gone),
            {key: names for key, names in self.different.items() if key not in gone},
        )

    def __add__(self, other: "Differences") -> "Differences":
        return Differences(
            self.missing + other.missing, self.extra + other.extra, {**self.different, **other.different}
        )


Confirm = Callable[[Sequence[Key]], tuple[Differences, int]]
"""Those of the keys that differ indeed, and the number of those that are no difference: the next run reads them."""


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    differences: Differences
    waiting: int  # differing keys that `confirm` has left to the next run
    source_rows: int
    target_rows: int
    complete: bool  # False: the search ended at MOST_KEYS, and there may be more


def find(
    sides: Sides, confirm: Confirm | None = None, *, most_keys: int = MOST_KEYS, rows_at_once: int = ROWS_AT_ONCE
) -> Found:
    """Every key that differs, by the judgement of `confirm`; without it, rows that change meanwhile may be among them.

    Keys that the next run reads do not count towards `most_keys`: a source may change any number of rows between runs.
    """
    target, source = both(sides, lambda wanted: cut(sides, wanted))
    ranges = differing(source, target)
    found, waiting = Differences(), 0
    for some in _portions(by_keys(sides, ranges, rows_at_once=rows_at_once), most_keys):
        confirmed, left = confirm(some.keys) if confirm else (some, 0)
        found, waiting = found + confirmed, waiting + left
        if found.count >= most_keys:
            break
    return Found(
        found,
        waiting,
        source_rows=sum(one.rows for one in source),
        target_rows=sum(one.rows for one in target),
        complete=not ranges,
    )


def _portions(parts: "Iterable[Compared]", keys: int) -> Iterator[Differences]:
    """The differences of the parts, at least so many keys at a time, except for the last."""
    found = Differences()
    for part in parts:
        found += part.differences
        if found.count >= keys:
            yield found
            found = Differences()
    if found.count:
        yield found


def check(sides: Sides, keys: Sequence[Key]) -> Differences:
    """Those of the keys that differ as of now."""
    found = Differences()
    for some in chunks(keys, KEYS_AT_ONCE):
        found += _compared(sides, replace(sides.wanted, only=tuple(some), control=None, by_key=True))[0]
    return paired(sides, found)


def paired(sides: Sides, found: Differences) -> Differences:
    """The same, but a key that the target has in another text, as 1.0 and 1.00 are one number, is different.

    Otherwise it would be missing and extra at once, and the deletion of the one would delete the other.
    """
    if not found.missing or all(column.identical for column in sides.wanted.key):
        return found
    pairs = _stored_otherwise(sides, found.missing)
    if not pairs:
        return found
    wanted = replace(sides.wanted, control=None, by_key=True)
    source = sides.source(replace(wanted, only=tuple(pairs)))
    target = {one.range.low: one for one in sides.target(replace(wanted, only=tuple(pairs.values())))}
    names = [column.name for column in wanted.columns]
    key = tuple(column.name for column in wanted.key)
    different: dict[Key, tuple[str, ...]] = dict.fromkeys(pairs, key)
    for one in source:
        ours = one.range.low or ()
        if ours in pairs and (theirs := target.get(pairs[ours])) is not None:
            different[ours] = tuple(_differing_columns(names, one, theirs))
    return found.without((*pairs, *pairs.values())) + Differences(different=different)


def _stored_otherwise(sides: Sides, missing: Sequence[Key]) -> dict[Key, Key]:
    """Those of the missing keys that the target finds equal to one of its own, and that one."""
    pairs: dict[Key, Key] = {}
    waiting = list(chunks(missing, KEYS_AT_ONCE))
    while waiting:
        some = waiting.pop()
        given = frozenset(some)
        stored = [key for key in sides.stored(some) if key not in given]
        if stored and len(some) == 1:
            pairs[some[0]] = stored[0]
        elif stored:  # halves, until each is known
            middle = len(some) // 2
            waiting += [some[:middle], some[middle:]]
    return pairs


def cut(sides: Sides, wanted: Compare) -> tuple[Sequence[Digest], Sequence[Digest]]:
    """The target, cut into ranges of similar size, and the source by the same ranges."""
    wanted = replace(wanted, control=None)
    if sides.selects_ranges:
        bounds = sides.target(replace(wanted, parts=PARTS, bounds_only=True))
        source, target = sides.pair(replace(wanted, ranges=tuple(one.range for one in bounds)))
        return target, source
    target = sides.target(replace(wanted, parts=PARTS))
    return target, sides.source(replace(wanted, ranges=tuple(one.range for one in target)))


Pair = tuple[Digest, Digest]
"""The digests of a range in source and target."""


def differing(source: Sequence[Digest], target: Sequence[Digest]) -> list[Pair]:
    pairs = zip(source, target, strict=True)
    return [(ours, theirs) for ours, theirs in pairs if (ours.rows, ours.hash) != (theirs.rows, theirs.hash)]


@dataclass(frozen=True)
class Compared:
    """Ranges that were compared key by key."""

    differences: Differences
    rows: int  # of the side that has more of them
    repeated: Mapping[Key, int]  # keys that the source returns more than once, with the number of rows


def by_keys(sides: Sides, waiting: list[Pair], *, rows_at_once: int = ROWS_AT_ONCE) -> Iterator[Compared]:
    """Compares the ranges of the list key by key, some at a time, and removes them from it."""
    while waiting:
        ours, theirs = waiting[0]
        if max(ours.rows, theirs.rows) > rows_at_once:
            waiting[:1] = _split(sides, ours, theirs)
            continue
        some = _take(waiting, rows_at_once)
        ranges = tuple(ours.range for ours, _ in some)
        found, repeated = _compared(sides, replace(sides.wanted, ranges=ranges, control=None, by_key=True))
        yield Compared(found, sum(max(ours.rows, theirs.rows) for ours, theirs in some), repeated)


def _split(sides: Sides, ours: Digest, theirs: Digest) -> list[Pair]:
    """The parts of a large range that differ, cut by the side that has more rows in it."""
    wanted = replace(sides.wanted, control=None, ranges=(ours.range,), parts=PARTS)
    if theirs.rows >= ours.rows:
        target = sides.target(wanted)
        source = sides.source(replace(wanted, parts=1, ranges=tuple(one.range for one in target)))
    else:
        source = sides.source(wanted)
        target = sides.target(replace(wanted, parts=1, ranges=tuple(one.range for one in source)))
    # a range that cannot be cut is compared as it is
    whole = len(source) == 1
    return [(replace(source[0], rows=0), replace(target[0], rows=0))] if whole else differing(source, target)


def _take(waiting: list[Pair], rows_at_once: int) -> list[Pair]:
    """The next ranges that together have not too many rows; they are removed from the list."""
    count, rows = 0, 0
    for ours, theirs in waiting:
        rows += max(ours.rows, theirs.rows)
        if count and rows > rows_at_once:
            break
        count += 1
    some = waiting[:count]
    del waiting[:count]
    return some


def _compared(sides: Sides, compare: Compare) -> tuple[Differences, dict[Key, int]]:
    """What differs among the keys that the comparison covers, and those of them that the source has repeatedly."""
    source, target = sides.pair(compare)
    repeated = {one.range.low or (): one.rows for one in source if one.rows > 1}
    return compare_digests(source, target, compare), repeated


def compare_digests(source: Iterable[Digest], target: Iterable[Digest], compare: Compare) -> Differences:
    """What differs between the digests of keys."""
    ours = {one.range.low or (): one for one in source}
    theirs = {one.range.low or (): one for one in target}
    names = [column.name for column in compare.columns]
    different = {
        key: tuple(_differing_columns(names, one, theirs[key]))
        for key, one in ours.items()
        if key in theirs and (one.rows, one.columns) != (theirs[key].rows, theirs[key].columns)
    }
    return Differences(
        missing=tuple(key for key in ours if key not in theirs),
        # guarantee: R1
        extra=tuple(key for key in theirs if key not in ours),
        different=different,
    )


def _differing_columns(names: Sequence[str], ours: Digest, theirs: Digest) -> Iterator[str]:
    images = zip(names, ours.columns, theirs.columns, strict=True)
    return (name for name, source, target in images if source != target)
