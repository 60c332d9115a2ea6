"""The table of mutants: small changes that each remove one protection, and the tests that must then fail."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("table.toml")


class TableError(Exception):
    """The table and the tree do not match; the text names each entry and the reason."""


@dataclass(frozen=True)
class Mutant:
    """One entry; `old` and `new` are whole lines."""

    id: str
    file: str
    test: str
    old: str
    new: str

    def applied_to(self, text: str) -> str:
        """The text with the protection removed."""
        lines = re.compile("^" + re.escape(self.old), re.MULTILINE)
        if (count := len(lines.findall(text))) != 1:
            raise TableError(
                f"mutant {self.id}: its old lines occur {count} times in {self.file}, and must occur once;"
                " correct `old` in the table of mutants"
            )
        return lines.sub(lambda _: self.new, text)


def load(table: Path = TABLE) -> list[Mutant]:
    return [Mutant(**entry) for entry in tomllib.loads(table.read_text("utf-8"))["mutant"]]


def problems(mutants: Sequence[Mutant], root: Path = ROOT) -> list[str]:
    """A sentence for every entry that cannot be applied to the tree."""
    return [problem for mutant in mutants if (problem := _problem(mutant, root))]


def _problem(mutant: Mutant, root: Path) -> str | None:
    try:
        mutant.applied_to((root / mutant.file).read_text("utf-8"))
    except FileNotFoundError:
        return f"mutant {mutant.id}: there is no file {mutant.file}; correct `file` in the table of mutants"
    except TableError as exc:
        return str(exc)
    return None
