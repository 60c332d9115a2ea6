"""Text for people and terminals: unprintable characters, tables, the text of access tokens."""

import re
import secrets
import string
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from itertools import zip_longest
from textwrap import wrap as wrap_text
from zlib import crc32

_LETTERS = frozenset("\u200c\u200d")
"""Joiners are part of words in some scripts; they control nothing else."""


def printable(text: str, *, lines: bool = False) -> str:
    """The text with every character visible that would control a terminal: ESC as \\x1b, and so on.

    Changes of the writing direction count as well: they can make a line read as another one. With `lines`, line breaks
    stay.
    """
    if text.isprintable():
        return text
    return "".join(_shown(letter, lines=lines) for letter in text)


def printable_json(text: str) -> str:
    """JSON that means the same, without such characters: JSON has an escape for each."""
    if text.isprintable():
        return text
    return re.sub(r"[^\n -~]", lambda found: _json_escape(found[0]), text)


def markup(value: object) -> str:
    """A value within text for a rich console: neither its markup nor its control characters have an effect."""
    from rich.markup import escape

    return escape(printable(str(value)))


def _shown(letter: str, *, lines: bool) -> str:
    if letter.isprintable() or (lines and letter == "\n") or not _controls(letter):
        return letter
    return letter.encode("unicode_escape", "backslashreplace").decode("ascii")


def _json_escape(letter: str) -> str:
    if not _controls(letter):
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _controls(letter: str) -> bool:
    """Control characters, formatting such as direction changes, halves of surrogate pairs, separators of lines."""
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in _LETTERS


PREFIX = "vtr_"
TOKEN_PATTERN = re.compile(r"vtr_[0-9A-Za-z]{49}")
SHOWN = len(PREFIX) + 4
"""So many characters of a token are stored in clear, to recognise it."""

_BYTES = 32
_BODY, _CHECKSUM = 43, 6  # digits of base 62
_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase


def new_token() -> str:
    body = _encode(int.from_bytes(secrets.token_bytes(_BYTES), "big"), _BODY)
    return PREFIX + body + token_checksum(body)


def token_hash(token: str) -> bytes | None:
    """SHA-256 of the random bytes; None if the text is not a token. The checksum finds typing errors at once."""
    if not TOKEN_PATTERN.fullmatch(token):
        return None
    body, checksum = token[len(PREFIX) : -_CHECKSUM], token[-_CHECKSUM:]
    number = _decode(body)
    if token_checksum(body) != checksum or number >= 1 << 8 * _BYTES:
        return None
    return sha256(number.to_bytes(_BYTES, "big")).digest()


def redact(text: str) -> str:
    return TOKEN_PATTERN.sub(f"{PREFIX}***", text)


def token_checksum(body: str) -> str:
    return _encode(crc32(body.encode()), _CHECKSUM)


def _encode(number: int, length: int) -> str:
    digits: list[str] = []
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def _decode(text: str) -> int:
    number = 0
    for letter in text:
        number = number * len(_DIGITS) + _DIGITS.index(letter)
    return number


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
