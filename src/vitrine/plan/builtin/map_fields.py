"""Maps columns without code of one's own: drops, renames, trims, casts and fills them."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vitrine.core.copytext import values
from vitrine.core.rows import Row
from vitrine.definition.model import Column
from vitrine.definition.registry import FieldError, transforms

CastType = Literal["text", "integer", "bigint", "numeric", "double precision", "boolean", "date", "timestamptz", "uuid"]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[nN]a[nN]|[+-]?[iI]nf(inity)?")
_BOOLEANS = {
    **dict.fromkeys(("t", "true", "y", "yes", "on", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "off", "0"), False),
}


class FieldMapping(BaseModel):
    """Applied in the order of the fields; `trim`, `cast` and `default` use the names after `rename`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drop: tuple[Column, ...] = Field(default=(), description="Columns that are not written.")
    rename: dict[Column, Column] = Field(default_factory=dict[str, str], description="New names by the old ones.")
    trim: tuple[Column, ...] = Field(default=(), description="Text without white space at both ends.")
    cast: dict[Column, CastType] = Field(default_factory=dict[str, CastType], description="Types by column.")
    default: dict[Column, bool | int | float | str] = Field(
        default_factory=dict[str, bool | int | float | str], description="Values by column, for NULL."
    )

    @model_validator(mode="after")
    def _gives_each_name_once(self) -> Self:
        new = list(self.rename.values())
        if repeated := sorted({name for name in new if new.count(name) > 1}):
            raise ValueError(f"two columns are renamed to '{repeated[0]}'; choose another name for one")
        if both := sorted(set(self.drop) & self.rename.keys()):
            raise ValueError(f"column '{both[0]}' is dropped and renamed; remove it from one of them")
        return self


@transforms.register("map_fields", options=FieldMapping)
def map_fields(rows: Sequence[Row], options: FieldMapping) -> Sequence[Row]:
    """Drops, renames, trims, casts and fills columns, as its options say."""
    return [_mapped(row, options) for row in rows]


def _mapped(row: Row, options: FieldMapping) -> Row:
    mapped = _renamed(row, options)
    for name in options.trim:
        mapped[name] = _trimmed(name, _value(mapped, name, "trim"))
    for name, type_name in options.cast.items():
        mapped[name] = _cast(name, _value(mapped, name, "cast"), type_name)
    for name, value in options.default.items():
        if _value(mapped, name, "default") is None:
            mapped[name] = value
    return mapped


def _renamed(row: Row, options: FieldMapping) -> Row:
    for name in options.drop:
        _value(row, name, "drop")
    for name in options.rename:
        _value(row, name, "rename")
    kept = {name: value for name, value in row.items() if name not in options.drop}
    renamed = {options.rename.get(name, name): value for name, value in kept.items()}
    if len(renamed) < len(kept):
        taken = next(new for new in options.rename.values() if new in kept and new not in options.rename)
        raise FieldError(f"rename: there is a column '{taken}' already; drop it, or choose another name")
    return renamed


def _value(row: Mapping[str, Any], name: str, option: str) -> Any:
    if name not in row:
        raise FieldError(f"{option}: there is no column '{name}'; there are: {', '.join(row)}")
    return row[name]


def _trimmed(name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, values.Unreadable) or not isinstance(value, str):
        raise FieldError(f"trim: column '{name}' is not text; remove it from trim, or cast it in an earlier step")
    return value.strip()


def _cast(name: str, value: Any, type_name: CastType) -> Any:
    if value is None:
        return None
    try:
        return _CASTS[type_name](value)
    except values.UnreadableValue:
        raise
    except (ValueError, TypeError, ArithmeticError):
        # the exception's text may quote the value
        raise FieldError(f"cast: a value of column '{name}' is no {type_name}; correct it in the query") from None


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, values.Unreadable | list | tuple):  # the text of a list depends on the type of its column
        raise TypeError
    return values.to_text(value)


def _to_integer(value: Any) -> int:
    if isinstance(value, float | Decimal):
        whole = int(value)
        if whole != value:
            raise ValueError
        return whole
    return int(value) if isinstance(value, bool | int) else int(_matching(_INTEGER, value))


def _to_numeric(value: Any) -> Decimal:
    return Decimal(_number(value))


def _to_double(value: Any) -> float:
    return float(_number(value))


def _number(value: Any) -> str:
    return _matching(_NUMBER, _to_text(value) if isinstance(value, int | float | Decimal) else value)


def _matching(pattern: re.Pattern[str], value: Any) -> str:
    """Python reads more spellings of a number than PostgreSQL: 1_000, digits of other scripts."""
    text = value.strip() if isinstance(value, str) else ""
    if pattern.fullmatch(text) is None:
        raise ValueError
    return text


def _to_boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = _BOOLEANS.get(_to_text(value).strip().lower())
    if known is None:
        raise ValueError
    return known


def _to_date(value: Any) -> date:
    if isinstance(value, datetime):
        return value.date()
    return value if isinstance(value, date) else date.fromisoformat(_to_text(value).strip())


def _to_moment(value: Any) -> datetime:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(_to_text(value).strip())
    if moment.tzinfo is None:
        raise ValueError
    return moment


def _to_uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(_to_text(value).strip())


_CASTS: Mapping[CastType, Callable[[Any], Any]] = {
    "text": _to_text,
    "integer": _to_integer,
    "bigint": _to_integer,
    "numeric": _to_numeric,
    "double precision": _to_double,
    "boolean": _to_boolean,
    "date": _to_date,
    "timestamptz": _to_moment,
    "uuid": _to_uuid,
}
