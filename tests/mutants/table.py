"""The table of mutants: small changes that each remove one protection, and the tests that must then fail.

An entry finds its place by the marker `# guarantee: A7` (in SQL `-- guarantee: A7`), a line of its own directly above
the protected lines, and names the function around it. So code can move without a change of the table.
"""

import ast
import io
import re
import textwrap
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("table.toml")

_MARKER = re.compile(r"([ \t]*)(?:#|--) guarantee: (\w+)\s*")
_SQL_NAME = re.compile(
    r"^(?:-- (?:fragment )?(\w+) --$|(?:CREATE|ALTER) (?:OR REPLACE |UNIQUE )*[A-Z]+ (?:IF NOT EXISTS )?([\w.]+))"
)
_BREAKS = (tokenize.NEWLINE, tokenize.NL)
_NO_CODE = (tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)


class TableError(Exception):
    """The table and the tree do not match; the text names the entry, the reason and the remedy."""


@dataclass(frozen=True)
class Marker:
    """Where a marker is in the tree."""

    id: str
    file: Path
    """Relative to the root."""
    first: int
    """Index of the first protected line; several markers may protect the same one."""
    indent: str
    function: str


@dataclass(frozen=True)
class Mutant:
    """One entry; table.toml describes the fields."""

    id: str
    function: str
    test: str
    new: str
    lines: int = 1
    part: str = ""

    def protected(self, text: str, marker: Marker) -> tuple[str, str, str]:
        """The text before the protected lines, these lines, and the text after them."""
        lines = text.splitlines(keepends=True)
        length = _length(lines, marker.first, self.lines) if marker.file.suffix == ".py" else self.lines
        end = marker.first + length
        return "".join(lines[: marker.first]), "".join(lines[marker.first : end]), "".join(lines[end:])

    def applied_to(self, text: str, marker: Marker) -> str:
        """The text with the protection removed."""
        before, protected, after = self.protected(text, marker)
        is_python = marker.file.suffix == ".py"
        changed = before + self._replaced(protected, marker.indent) + after
        if is_python and not self.new and not _parses(changed):
            changed = f"{before}{marker.indent}pass\n{after}"  # nothing else is left in the block
        if changed == text:
            raise TableError(
                f"mutant {self.id}: its `new` leaves {marker.file} unchanged; write what removes the protection"
            )
        if is_python and not _parses(changed):
            raise TableError(
                f"mutant {self.id}: with its `new`, {marker.file} is not valid Python;"
                " correct `new` or the number of `lines` in the table of mutants"
            )
        return changed

    def _replaced(self, protected: str, indent: str) -> str:
        if not self.part:
            return textwrap.indent(textwrap.dedent(self.new), indent)
        if (count := protected.count(self.part)) != 1:
            raise TableError(
                f"mutant {self.id}: its `part` occurs {count} times in the lines below the marker, and must occur once;"
                " correct `part` in the table of mutants"
            )
        return protected.replace(self.part, self.new)


def load(table: Path = TABLE) -> list[Mutant]:
    return [Mutant(**entry) for entry in tomllib.loads(table.read_text("utf-8"))["mutant"]]


def sources(root: Path = ROOT) -> list[Path]:
    """The folders whose code may have markers."""
    return [root / "src", *sorted(root.glob("packages/*/src"))]


@cache
def tree_markers(root: Path = ROOT) -> Sequence[Marker]:
    """All markers of the tree."""
    files = [file for folder in sources(root) for suffix in ("*.py", "*.sql") for file in folder.rglob(suffix)]
    return [marker for file in sorted(files) for marker in markers(file.relative_to(root), file.read_text("utf-8"))]


def markers(file: Path, text: str) -> Iterator[Marker]:
    """The markers of one file."""
    if " guarantee: " not in text:
        return
    lines = text.splitlines(keepends=True)
    rows = _comment_rows(lines) if file.suffix == ".py" else range(len(lines))
    found = {row: marker for row in rows if (marker := _MARKER.fullmatch(lines[row]))}
    for row, marker in found.items():
        first = next(later for later in range(row, len(lines) + 1) if later not in found)
        function = _python_name(ast.parse(text), first + 1) if file.suffix == ".py" else _sql_name(lines[: first + 1])
        yield Marker(marker[2], file, first, marker[1], function)


def place(mutant: Mutant, among: Iterable[Marker]) -> Marker:
    """The marker of an entry."""
    found = [marker for marker in among if marker.id == mutant.id]
    if not found:
        raise TableError(
            f"mutant {mutant.id}: no line of the source has its marker; write `# guarantee: {mutant.id}` (in SQL"
            f" `-- guarantee: {mutant.id}`) above the protected line in {mutant.function}, or remove the entry"
        )
    if len(found) > 1:
        files = ", ".join(str(marker.file) for marker in found)
        raise TableError(f"mutant {mutant.id}: its marker occurs {len(found)} times ({files}); leave one of them")
    if found[0].function != mutant.function:
        raise TableError(
            f"mutant {mutant.id}: its marker is in {found[0].function} ({found[0].file}), the table names"
            f" {mutant.function}; move the marker, or correct `function` in the table of mutants"
        )
    return found[0]


def problems(mutants: Iterable[Mutant], root: Path = ROOT) -> list[str]:
    """A sentence for every entry that cannot be applied to the tree."""
    return [problem for mutant in mutants if (problem := _problem(mutant, root))]


def unlisted(mutants: Iterable[Mutant], root: Path = ROOT) -> list[str]:
    """A sentence for every marker without an entry."""
    ids = {mutant.id for mutant in mutants}
    return [
        f"{marker.file}: the marker {marker.id} in {marker.function} has no entry in the table of mutants;"
        " add one, or remove the marker"
        for marker in tree_markers(root)
        if marker.id not in ids
    ]


def _problem(mutant: Mutant, root: Path) -> str | None:
    try:
        marker = place(mutant, tree_markers(root))
        mutant.applied_to((root / marker.file).read_text("utf-8"), marker)
    except TableError as exc:
        return str(exc)
    return None


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _comment_rows(lines: Sequence[str]) -> list[int]:
    """Lines that have a comment: what looks like a marker in a string is none."""
    return [token.start[0] - 1 for token in _tokens(lines) if token.type == tokenize.COMMENT]


def _length(lines: Sequence[str], first: int, count: int) -> int:
    """How many lines of the file these lines of code take, each with the lines that close its brackets and strings."""
    depth, has_code = 0, False
    for token in _tokens(lines):
        if token.start[0] <= first or token.type in _NO_CODE:
            continue
        if token.type not in _BREAKS:
            has_code = True
            depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
        elif has_code and depth <= 0:
            count, has_code = count - 1, False
            if count == 0:
                return token.start[0] - first
    return len(lines) - first


def _tokens(lines: Sequence[str]) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO("".join(lines)).readline)


def _python_name(tree: ast.Module, line: int) -> str:
    """The innermost function around a line, after its classes; outside of functions, the variable that is assigned."""
    around = [
        node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    names: list[str] = []
    in_function = False
    for node in sorted(around, key=lambda node: (node.lineno, -(node.end_lineno or 0))):
        match node:
            case ast.ClassDef(name=name):
                names.append(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.append(name)
                in_function = True
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if not in_function:
                names.append(name)
            case _:
                pass
    return ".".join(names)


def _sql_name(lines: Sequence[str]) -> str:
    """The name of a statement of queries.sql; elsewhere, that of the object that a statement creates or alters."""
    names = [found[1] or found[2] for line in lines if (found := _SQL_NAME.match(line.rstrip("\n")))]
    return names[-1] if names else ""
