"""Names, rows and errors as a terminal may show them."""

import io
import json
import logging

import pytest
from rich.console import Console

from vitrine.cli import output
from vitrine.logs import configure_logging
from vitrine.text import Lines, markup, printable, printable_json, red, table

HOSTILE = "a\x1b[31mred\x1b]0;title\x07\x9b2Jb\u202edcba\u2066x\r\x00\x7f\u2028"


def is_harmless(text: str) -> bool:
    return all(letter == "\n" or letter.isprintable() for letter in text)


@pytest.mark.promise("K11")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202eevil", "\\u202eevil"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("[/x] [bold]", "[/x] [bold]"),
        ("Солярис 索拉里斯 \u200dé\xa0", "Солярис 索拉里斯 \u200dé\xa0"),
    ],
)
def test_a_character_that_controls_the_terminal_is_visible(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_breaks_of_our_own_stay() -> None:
    assert printable("a\n\x1bb", lines=True) == "a\n\\x1bb"


@pytest.mark.promise("K11")
def test_json_means_the_same_without_such_characters() -> None:
    value = {"name": HOSTILE, "more": "Солярис\U000e0041"}
    shown = printable_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert is_harmless(shown)
    assert json.loads(shown) == value
    assert "Солярис" in shown


@pytest.mark.promise("K11")
@pytest.mark.parametrize("colours", [False, True])
def test_a_cell_of_a_table_is_one_line_without_control_characters(colours: bool) -> None:
    rows = [(HOSTILE, red(HOSTILE)), ("line\nbreak", Lines("two\nlines"))]
    shown = table(("key", HOSTILE), rows, title=HOSTILE, colours=colours)
    for code in ("\x1b[36m", "\x1b[31m", "\x1b[1m", "\x1b[0m") if colours else ():
        shown = shown.replace(code, "")
    assert is_harmless(shown)
    assert any(line.startswith("line\\nbreak ") and line.endswith("two") for line in shown.splitlines())


@pytest.mark.promise("K11")
def test_markup_in_a_value_is_shown_as_it_is() -> None:
    written = io.StringIO()
    Console(file=written, force_terminal=True, width=200, highlight=False).print(
        f"[green]data in[/] {markup('[/x][red]' + HOSTILE)}"
    )
    text = written.getvalue()
    assert "[/x][red]a\\x1b[31mred" in text
    assert "\x1b[31m" not in text


@pytest.mark.promise("K11")
def test_every_line_that_a_command_prints_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(f"{HOSTILE}\nforged line")
    output.show_lines(f"ours\n{HOSTILE}")
    output.show_json({"name": HOSTILE})
    output.show_table(("name",), [(HOSTILE,)])
    shown = capsys.readouterr().out
    assert is_harmless(shown)
    assert "\nforged line" not in shown


@pytest.mark.promise("K11")
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_log_line_controls_no_terminal(log_format: str) -> None:
    written = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        configure_logging("info", "text" if log_format == "text" else "json", stream=written)
        logging.getLogger("vitrine.tests").info("%s", HOSTILE, extra={"pipeline": HOSTILE})
    finally:
        root.handlers[:], root.level = before[0], before[1]
    line = written.getvalue()
    assert line.count("\n") == 1
    assert is_harmless(line)
