"""The form in which values of two types are compared without losing a difference."""

from decimal import Decimal

from vitrine.flow.rows import NUMBERS, CommonForm, Kind, bare_type, kind_of

_MOMENTS = frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})

_PARSED = frozenset({"boolean", "inet", "cidr"})
"""Types whose cast to text differs from their text format, so that a text column may hold either: true and t."""

_PADDED = frozenset({"character", "bpchar"})


def common_form(source: str, target: str, *, exact: bool = True) -> CommonForm:
    """How a source value and a stored value are compared, by their types.

    Numbers that a transform returned have no type yet, only a value: they are not `exact`.
    """
    kinds = {kind_of(source), kind_of(target)}
    if kinds <= NUMBERS and not (exact and source == target):
        return CommonForm.FLOAT if kinds == {Kind.FLOAT} else CommonForm.NUMBER
    if source == target:
        return CommonForm.SAME
    if kinds == {Kind.TEXT}:
        return CommonForm.PADDED if bare_type(source) in _PADDED else CommonForm.TEXT
    if bare_type(source) == bare_type(target):
        return CommonForm.SAME
    if kinds <= _MOMENTS:
        return CommonForm.MOMENT
    if kinds == {Kind.TIME}:
        return CommonForm.TIME
    if kinds == {Kind.JSON}:
        return CommonForm.JSON
    if bare_type(source) in _PARSED and kind_of(target) is Kind.TEXT:
        return CommonForm.PARSED
    return CommonForm.OUTPUT


def lossless_type(produced: str, target: str) -> str:
    """A type that holds a produced value as it is, before the target's type rounds, cuts or shortens it."""
    kinds = (kind_of(produced), kind_of(target))
    match kinds:
        case Kind.FLOAT, _ if kinds[1] in NUMBERS:
            return produced
        case _ if set(kinds) <= NUMBERS:
            return "numeric"
        case _ if set(kinds) <= _MOMENTS or set(kinds) == {Kind.TIME}:
            return bare_type(produced)
        case Kind.TEXT, Kind.TEXT:
            return "text"
        case _:
            return target


def canonical(text: str | None, form: CommonForm) -> str | None:
    """A value's text in a common form, as far as a text alone allows it."""
    if text is None:
        return None
    try:
        return _in_form(text, form)
    except (ArithmeticError, ValueError):  # not a number: it equals only itself
        return text


def _in_form(text: str, form: CommonForm) -> str:
    match form:
        case CommonForm.NUMBER:
            return _trimmed(Decimal(text))
        case CommonForm.FLOAT:
            return repr(float(text))
        case CommonForm.PADDED:
            return text.rstrip(" ")
        case _:
            return text


def _trimmed(value: Decimal) -> str:
    if not value.is_finite():
        return str(value)
    plain = format(value, "f")
    return (plain.rstrip("0").rstrip(".") if "." in plain else plain) if value else "0"
