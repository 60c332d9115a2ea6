"""Checks of rows, for every sink: what they find, and how their values are read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from uuid import UUID

from vitrine.core.checks import (
    KEYS_NAMED,
    AcceptedValues,
    BaseCheck,
    CheckResult,
    NotNull,
    Range,
    Results,
    RowCount,
    Unique,
)
from vitrine.core.keys import readable, to_text
from vitrine.core.rows import NUMBERS, Key, Kind, bare_type, kind_of
from vitrine.errors import ConfigError

CHECK_COLUMN = "CHECK_COLUMN"
CHECK_UNSUPPORTED = "CHECK_UNSUPPORTED"

RANGED = NUMBERS | {Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ}
"""Kinds with one order; that of text depends on a collation."""

ZONED_TIME = "time with time zone"
"""Its order depends on the zone of each value."""

LISTED = NUMBERS | {Kind.BOOLEAN, Kind.TEXT, Kind.UUID, Kind.DATE}
"""Kinds whose values can be listed."""

Texts = Mapping[str, str | None]
"""A row in canonical text, by column."""


def result_of(check: BaseCheck, rows: int, keys: Iterable[Key] = ()) -> CheckResult:
    """The result of a check that counts rows; `keys` are some of them, if they may be named."""
    if not rows:
        return CheckResult(check.label, check.kind, check.severity)
    named = tuple(readable(to_text(key)) for key in keys)
    return CheckResult(check.label, check.kind, check.severity, False, rows, named[:KEYS_NAMED], what_breaks(check))


def what_breaks(check: BaseCheck) -> str:
    """What is wrong with rows that break a check; without values, which may be confidential."""
    columns = ", ".join(f"'{name}'" for name in check.checked)
    match check:
        case NotNull():
            return f"with NULL in {columns}"
        case Unique():
            return f"with the same values in {columns} as another row"
        case AcceptedValues():
            return f"with another value in {columns} than the accepted ones"
        case Range():
            bounds = [
                f"{name} {value}" for name, value in (("min", check.min), ("max", check.max)) if value is not None
            ]
            return f"outside the range of {columns} ({', '.join(bounds)})"
        case _:
            return "returned by its query, which must return none"


def count_result(check: RowCount, rows: int, before: int | None) -> CheckResult:
    """The result of a row count; `before` are the rows of the mart as it is, None if there is no mart yet."""
    reasons: list[str] = []
    if check.min is not None and rows < check.min:
        reasons.append(f"fewer than min {check.min:,}")
    if check.max is not None and rows > check.max:
        reasons.append(f"more than max {check.max:,}")
    if before is not None and check.min_ratio is not None and rows < before * check.min_ratio:
        reasons.append(f"fewer than min_ratio {check.min_ratio:g} of the {before:,} rows of the mart")
    if before is not None and check.max_ratio is not None and rows > before * check.max_ratio:
        reasons.append(f"more than max_ratio {check.max_ratio:g} of the {before:,} rows of the mart")
    found = f"the load has {rows:,} row{'' if rows == 1 else 's'}, {' and '.join(reasons)}" if reasons else ""
    return CheckResult(check.label, check.kind, check.severity, not reasons, rows, (), found)


# -- values of a check, in the type of its column ---------------------------------------------------------------------


def refuse_unfit(checks: Sequence[BaseCheck], types: Mapping[str, str], target: str) -> None:
    """ConfigError for the first check that cannot be carried out on rows of these columns and types."""
    for check in checks:
        if reason := unfit_reason(check, types, target):
            raise ConfigError(reason, code=CHECK_COLUMN)


def unfit_reason(check: BaseCheck, types: Mapping[str, str], target: str) -> str | None:
    """Why a check cannot be carried out on rows of these columns and types; None if it can."""
    place = f"check '{check.label}'"
    for name in check.checked:
        if name not in types:
            have = ", ".join(types)
            return f"{place} names the column '{name}', which the rows of {target} do not have; they have: {have}"
    match check:
        case Range():
            kinds, values = RANGED, [one for one in (check.min, check.max) if one is not None]
        case AcceptedValues():
            kinds, values = LISTED, list(check.values)
        case _:
            return None
    type_name = types[check.column]
    if kind_of(type_name) not in kinds or (isinstance(check, Range) and bare_type(type_name) == ZONED_TIME):
        other = "accepted_values, or " if isinstance(check, Range) and kind_of(type_name) in LISTED else ""
        return (
            f"{place}: column '{check.column}' is {type_name}, for which {check.kind} is not defined;"
            f" use {other}a check of type sql"
        )
    for value in values:
        try:
            canonical(value, type_name)
        except ValueError as exc:
            return f"{place}: {value!r} is no value of column '{check.column}', which is {type_name}; {exc}"
    return None


def canonical(value: object, type_name: str) -> str:
    """The value in the text format of the type; ValueError with what to give instead."""
    kind = kind_of(type_name)
    if kind in NUMBERS:
        return _number_text(value, kind)
    if kind is Kind.BOOLEAN:
        if not isinstance(value, bool):
            raise ValueError("give true or false")
        return "t" if value else "f"
    if not isinstance(value, str):
        raise ValueError("put it in quotes")
    if kind not in _FORMS:
        return value
    read, example = _FORMS[kind]
    try:
        return read(value)
    except ValueError:
        raise ValueError(f"write it like {example}") from None


def _moment(value: str) -> datetime:
    """In UTC; a value without a zone is one of UTC."""
    found = datetime.fromisoformat(value)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


_FORMS: Mapping[Kind, tuple[Callable[[str], str], str]] = {
    Kind.DATE: (lambda value: date.fromisoformat(value).isoformat(), "2024-01-31"),
    Kind.TIME: (lambda value: time.fromisoformat(value).replace(tzinfo=None).isoformat(), "12:30:00"),
    Kind.TIMESTAMP: (lambda value: _moment(value).replace(tzinfo=None).isoformat(" "), "2024-01-31 12:30:00"),
    Kind.TIMESTAMPTZ: (lambda value: _moment(value).isoformat(" "), "2024-01-31 12:30:00+00:00"),
    Kind.UUID: (lambda value: str(UUID(value)), "5f0c6a52-3a55-4f0e-9a44-0d3f4f5f3c1e"),
}


def _number_text(value: object, kind: Kind) -> str:
    if isinstance(value, bool):
        raise ValueError("give a number")
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise ValueError("give a number") from None
    if not number.is_finite() or not -400 < number.adjusted() < 400:
        raise ValueError("give a number of fewer digits")
    if kind is Kind.INTEGER and number != number.to_integral_value():
        raise ValueError("give a whole number")
    if number and kind is Kind.FLOAT and not -37 < number.adjusted() < 38:
        raise ValueError("give a number that every type of floating point has")
    return format(number, "f")


# -- rows in memory ---------------------------------------------------------------------------------------------------


def breaks(check: NotNull | AcceptedValues | Range, types: Mapping[str, str]) -> Callable[[Texts], bool]:
    """Whether a row in canonical text breaks the check, as a function."""
    match check:
        case NotNull():
            return lambda row: any(row[name] is None for name in check.columns)
        case AcceptedValues():
            column, type_name = check.column, types[check.column]
            accepted = frozenset(_comparable(canonical(value, type_name), type_name) for value in check.values)
            return lambda row: (text := row[column]) is not None and _comparable(text, type_name) not in accepted
        case Range():
            return _is_outside(check, types[check.column])


def _is_outside(check: Range, type_name: str) -> Callable[[Texts], bool]:
    low, high = (
        None if bound is None else _ordered(canonical(bound, type_name), type_name) for bound in (check.min, check.max)
    )

    def is_outside(row: Texts) -> bool:
        text = row[check.column]
        if text is None:
            return False
        value = _ordered(text, type_name)
        # NaN lies in no range
        return value is None or (low is not None and value < low) or (high is not None and value > high)

    return is_outside


def _comparable(text: str, type_name: str) -> object:
    """Equal for equal values of the type."""
    kind = kind_of(type_name)
    if kind in NUMBERS:
        return _decimal(text)
    return text.rstrip(" ") if type_name.startswith(("character(", "bpchar")) else text


def _ordered(text: str, type_name: str) -> tuple[Decimal, str] | None:
    """In the order of the type; None: it has no place in it."""
    if kind_of(type_name) in NUMBERS:
        value = _decimal(text)
        return (value, "") if value is not None and not value.is_nan() else None
    return Decimal(0), _sortable(text, type_name)


def _sortable(text: str, type_name: str) -> str:
    """ISO text that is ordered as the moments are: without the zone, which is UTC, and without zeros at the end."""
    if text == "-infinity" or text.endswith("BC"):
        return ""
    if text == "infinity" or (kind_of(type_name) is not Kind.TIME and text[4:5] != "-"):
        return "9999-99"  # a year of five digits
    text = text.removesuffix("+00:00").removesuffix("+00")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def results_in(
    checks: Sequence[BaseCheck],
    rows: Sequence[Texts],
    types: Mapping[str, str],
    key: Sequence[str],
    *,
    show_keys: bool = True,
) -> Results:
    """The results of checks of single rows, which need nothing but the rows; other checks are left out."""
    found: list[CheckResult] = []
    for check in checks:
        if isinstance(check, NotNull | AcceptedValues | Range):
            is_broken = breaks(check, types)
            broken = [row for row in rows if is_broken(row)]
            named = [tuple(row[name] or "" for name in key) for row in broken[:KEYS_NAMED]] if show_keys else []
            found.append(result_of(check, len(broken), named))
    return tuple(found)
