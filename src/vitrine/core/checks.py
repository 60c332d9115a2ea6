"""Checks of a pipeline: rules that its rows must obey before readers see them, and what they have found."""

from dataclasses import dataclass, replace
from datetime import date
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

from vitrine.errors import DataError

Severity = Literal["fail", "warn"]

MART = "mart"
"""The name under which a check of type sql reads the rows."""

MOST_CHECKS = 50
LONGEST_VALUE = 1000

NAME = r"^[^\x00-\x1f\x7f]{1,100}$"
NAMED = r"^[^\x00]{1,63}$"
"""Any column that PostgreSQL can have."""


def _as_value(value: object) -> object:
    """One sentence for everything that is no value; YAML reads 2024-01-31 as a date."""
    if isinstance(value, date):
        return value.isoformat()
    if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and not isfinite(value)):
        raise ValueError("give a text, a number, true or false")
    if isinstance(value, str) and (len(value) > LONGEST_VALUE or "\0" in value):
        raise ValueError(f"give a text of at most {LONGEST_VALUE} characters, without NUL")
    return value


def _as_bound(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("give a number, or a date or time in quotes")
    return _as_value(value)


CheckedColumn = Annotated[str, Field(pattern=NAMED)]
CheckedColumns = Annotated[tuple[CheckedColumn, ...], Field(min_length=1, max_length=100)]
Value = Annotated[StrictBool | StrictInt | StrictFloat | str, BeforeValidator(_as_value)]
Bound = Annotated[StrictInt | StrictFloat | str, BeforeValidator(_as_bound)]


class BaseCheck(BaseModel):
    """What every check has."""

    # its own validator is built on first use: a definition has one that includes it
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    name: str | None = Field(
        default=None,
        pattern=NAME,
        description="Names the check in results and errors, each name once. null: its type and its columns.",
        examples=["rating_is_a_score"],
    )
    severity: Severity = Field(
        default="fail",
        description="fail: the rows are not published, and the run fails. warn: they are, and the result is shown.",
    )

    @property
    def checked(self) -> tuple[str, ...]:
        """The columns that the check names."""
        return ()

    @property
    def kind(self) -> str:
        return str(getattr(self, "type", ""))

    @property
    def label(self) -> str:
        """The name of the check, in results and errors."""
        if self.name is not None:
            return self.name
        return f"{self.kind} ({', '.join(self.checked)})" if self.checked else self.kind


class NotNull(BaseCheck):
    """No row has NULL in one of the columns."""

    type: Literal["not_null"]
    columns: CheckedColumns

    @property
    def checked(self) -> tuple[str, ...]:
        return self.columns


class Unique(BaseCheck):
    """No two rows have the same values in the columns; rows with a NULL in one of them are not compared."""

    type: Literal["unique"]
    columns: CheckedColumns

    @property
    def checked(self) -> tuple[str, ...]:
        return self.columns


class AcceptedValues(BaseCheck):
    """The column has one of the values, or NULL."""

    type: Literal["accepted_values"]
    column: CheckedColumn
    values: tuple[Value, ...] = Field(min_length=1, max_length=1000)

    @property
    def checked(self) -> tuple[str, ...]:
        return (self.column,)


class Range(BaseCheck):
    """The column lies between the bounds, which belong to the range, or is NULL. NaN lies in no range."""

    type: Literal["range"]
    column: CheckedColumn
    min: Bound | None = None
    max: Bound | None = None

    @property
    def checked(self) -> tuple[str, ...]:
        return (self.column,)

    @model_validator(mode="after")
    def _has_a_bound(self) -> "Range":
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both")
        return self


Rows = Annotated[StrictInt, Field(ge=0, le=2**62)]
Ratio = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class RowCount(BaseCheck):
    """How many rows a load has, by itself and against the rows of the mart as it is."""

    type: Literal["row_count"]
    min: Rows | None = None
    max: Rows | None = None
    min_ratio: Ratio | None = Field(default=None, description="Rows of the load per row of the mart, at least.")
    max_ratio: Ratio | None = Field(default=None, description="Rows of the load per row of the mart, at most.")

    @property
    def compares(self) -> bool:
        """Whether the rows of the mart as it is must be counted."""
        return self.min_ratio is not None or self.max_ratio is not None

    @model_validator(mode="after")
    def _has_a_bound(self) -> "RowCount":
        if self.min is None and self.max is None and not self.compares:
            raise ValueError("give min, max, min_ratio or max_ratio")
        return self


class Sql(BaseCheck):
    """A SELECT over the rows, which are the relation `mart`; it must return no row."""

    type: Literal["sql"]
    query: str = Field(
        description="One SELECT over `mart`, the rows to be published; it must return no row.",
        examples=["SELECT id FROM mart WHERE views < likes"],
    )


Check = Annotated[NotNull | Unique | AcceptedValues | Range | RowCount | Sql, Field(discriminator="type")]


def refuse_repeated_names(checks: tuple[Any, ...]) -> None:
    """ValueError if two checks have one name: their results would look alike."""
    labels = [check.label for check in checks]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"two checks have the name '{label}'; give each a name of its own")


KEYS_NAMED = 5
"""Keys of rows that a result names."""


@dataclass(frozen=True)
class CheckResult:
    """What a check has found in the rows of a run."""

    name: str
    type: str
    severity: Severity
    passed: bool = True
    rows: int = 0  # that break it; of row_count, the rows of the load
    keys: tuple[str, ...] = ()  # of some of them, for people
    found: str = ""  # what is wrong with these rows; empty if it has passed

    @property
    def sentence(self) -> str:
        """What is wrong; empty if the check has passed."""
        if not self.rows or self.type == "row_count":
            return self.found
        examples = f", for example {', '.join(self.keys)}" if self.keys else ""
        return f"{self.rows:,} row{'' if self.rows == 1 else 's'} {self.found}{examples}"

    def __add__(self, other: "CheckResult") -> "CheckResult":
        """Of the same check, in further rows."""
        keys = tuple(dict.fromkeys((*self.keys, *other.keys)))[:KEYS_NAMED]
        return replace(
            self,
            passed=self.passed and other.passed,
            rows=self.rows + other.rows,
            keys=keys,
            found=self.found or other.found,
        )

    def stored(self) -> dict[str, object]:
        """As the store keeps it with the run."""
        return {
            "name": self.name,
            "type": self.type,
            "severity": self.severity,
            "passed": self.passed,
            "rows": self.rows,
            "keys": list(self.keys),
            "text": self.sentence or None,
        }


Results = tuple[CheckResult, ...]


def combined(first: Results, second: Results) -> Results:
    """The results of a run, out of those of its units."""
    by_name = {result.name: result for result in first}
    for result in second:
        by_name[result.name] = by_name[result.name] + result if result.name in by_name else result
    return tuple(by_name.values())


class CheckFailed(DataError):
    """Rows break a check of severity fail: nothing of them is visible."""

    default_code = "CHECK_FAILED"

    def __init__(self, target: str, results: Results) -> None:
        self.results = results
        failed = [one for one in results if not one.passed and one.severity == "fail"]
        found = "; ".join(f"check '{one.name}': {one.sentence}" for one in failed)
        super().__init__(
            f"rows for {target} were not published, because they break {len(failed)} of its checks: {found}. Correct"
            " the rows at the source and run again, or change `checks`"
        )


def refuse_failed(target: str, results: Results) -> Results:
    """The results; CheckFailed if one of severity fail has not passed."""
    if any(not one.passed and one.severity == "fail" for one in results):
        raise CheckFailed(target, results)
    return results
