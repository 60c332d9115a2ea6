"""Tables as text: fast for thousands of rows, and complete where the output is not a terminal."""

from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap as wrap_text

from vitrine.printable import printable

GAP = "  "
MIN_WRAPPED_WIDTH = 12

_BOLD, _CYAN, _RED, _GREEN, _YELLOW = "1", "36", "31", "32", "33"


class Coloured(str):
    """A cell with a colour on terminals."""

    code: str

    def __new__(cls, text: object, code: str) -> "Coloured":
        cell = super().__new__(cls, text)
        cell.code = code
        return cell


class Lines(str):
    """A cell of several lines; a line break in another cell is a value, and shown as \\n."""

    __slots__ = ()


def red(text: object) -> Coloured:
    return Coloured(text, _RED)


def green(text: object) -> Coloured:
    return Coloured(text, _GREEN)


def yellow(text: object) -> Coloured:
    return Coloured(text, _YELLOW)


def coloured(text: Coloured) -> str:
    """The text with its colour, for a terminal."""
    return _colour(text, text.code, True)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    wrap: Collection[str] = (),
    title: str = "",
    width: int | None = None,
    colours: bool = False,
) -> str:
    """The rows under their columns. `right` are aligned to the right; `wrap` are broken into lines to fit `width`."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    columns = [printable(column) for column in columns]
    widths = _fit(columns, _natural_widths(columns, cells), wrap, width)
    is_right = [column in right for column in columns]
    head = [Coloured(column, _CYAN) for column in columns]
    lines = [
        *([_colour(printable(title), _BOLD, colours)] if title else ()),
        *_lines(head, widths, is_right, colours),
        "─" * (sum(widths) + len(GAP) * (len(widths) - 1)),
    ]
    for row in cells:
        lines += _lines(row, widths, is_right, colours)
    return "\n".join(lines)


def _cell(cell: str) -> str:
    """The cell without characters that would control a terminal."""
    if cell.isprintable():
        return cell
    if isinstance(cell, Lines):
        return Lines(printable(cell, lines=True))
    shown = printable(cell)
    return Coloured(shown, cell.code) if isinstance(cell, Coloured) else shown


def natural_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width of a table whose cells are not broken."""
    widths = _natural_widths(columns, rows)
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _natural_widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    widths = [len(column) for column in columns]
    for row in rows:
        for index, cell in enumerate(row):
            size = len(cell) if "\n" not in cell else max(map(len, cell.split("\n")))
            if size > widths[index]:
                widths[index] = size
    return widths


def _fit(columns: Sequence[str], natural: list[int], wrap: Collection[str], width: int | None) -> list[int]:
    """Make the widest of the columns that may wrap narrower; a table that is still too wide stays complete."""
    widths = list(natural)
    excess = 0 if width is None else sum(widths) + len(GAP) * (len(widths) - 1) - width
    for index in sorted(range(len(widths)), key=lambda index: -natural[index]):
        if columns[index] in wrap and excess > 0:
            narrower = min(widths[index], max(MIN_WRAPPED_WIDTH, len(columns[index]), widths[index] - excess))
            excess -= widths[index] - narrower
            widths[index] = narrower
    return widths


def _lines(row: Sequence[str], widths: Sequence[int], is_right: Sequence[bool], colours: bool) -> list[str]:
    broken = [_break_lines(cell, width) for cell, width in zip(row, widths, strict=True)]
    if all(len(part) == 1 for part in broken):
        return [_line(row, row, widths, is_right, colours)]
    return [_line(row, parts, widths, is_right, colours) for parts in zip_longest(*broken, fillvalue="")]


def _break_lines(cell: str, width: int) -> list[str]:
    if len(cell) <= width and "\n" not in cell:
        return [cell]
    return [piece for line in cell.split("\n") for piece in wrap_text(line, width) or [""]]


def _line(
    row: Sequence[str], parts: Sequence[str], widths: Sequence[int], is_right: Sequence[bool], colours: bool
) -> str:
    padded = [
        part.rjust(width) if right else part.ljust(width)
        for part, width, right in zip(parts, widths, is_right, strict=True)
    ]
    padded[-1] = padded[-1].rstrip()
    if colours:
        padded = [
            _colour(text, cell.code, colours) if isinstance(cell, Coloured) else text
            for cell, text in zip(row, padded, strict=True)
        ]
    return GAP.join(padded).rstrip()


def _colour(text: str, code: str, colours: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colours else text
