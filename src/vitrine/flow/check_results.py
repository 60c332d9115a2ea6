"""What the checks of a pipeline have found."""

from dataclasses import dataclass, replace

from vitrine.checks import Severity
from vitrine.errors import DataError

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
