"""The command line as it is declared: the page about it, global options, exit codes, completion."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from vitrine.cli import exit_codes, output
from vitrine.cli.app import COMMANDS as ALL_COMMANDS
from vitrine.cli.app import GLOBAL_OPTIONS, command_line, hoisted, needed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text("utf-8")
# of other branches of the surface: written beside this list when they have a page
COMMANDS: dict[str, Any] = getattr(typer.main.get_command(command_line(())), "commands")  # noqa: B009 – not in the type
SHOW_NOTHING = {
    "demo",
    "up",
    "sample",
    "devserver",
    "migrate",
    "api",
    "runner",
    "init",
    "completion",
    "schema",
    "export",
}
WITHOUT_JSON = SHOW_NOTHING | {"delete", "rollback", "token"}


def section(command: str) -> str:
    found = re.search(rf"^### {command}\n(.*?)(?=^##|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no section for {command}"
    return found[1]


def options(command: str) -> list[str]:
    parameters = COMMANDS[command].params
    return [name for one in parameters for name in (*one.opts, *one.secondary_opts) if name.startswith("--")]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_on_the_page(command: str) -> None:
    text = section(command)
    assert f"`vitrine {command}" in text
    missing = [name for name in options(command) if name != "--help" and not re.search(rf"{name}\b", text)]
    assert missing == []


def test_the_page_has_no_command_or_option_that_does_not_exist() -> None:
    assert {*re.findall(r"^### (\w+)$", PAGE, flags=re.MULTILINE)} == set(COMMANDS)
    for command in COMMANDS:
        named = set(re.findall(r"--[a-z][a-z-]+", section(command)))
        assert named <= {*options(command), "--api"}, command


def test_the_page_and_the_help_have_the_exit_codes() -> None:
    for code, meaning in exit_codes.TABLE:
        assert f"| {code} | {meaning} |\n" in PAGE
        assert f"{code:>5}  {meaning}" in exit_codes.help_text()


def test_every_command_that_shows_data_has_json() -> None:
    assert {name for name in COMMANDS if "--json" not in options(name)} == WITHOUT_JSON


@pytest.mark.parametrize("command", COMMANDS)
def test_the_short_help_of_a_command_is_not_cut_at_80_columns(command: str) -> None:
    width = 80 - 2  # the help leaves two columns free
    assert not COMMANDS[command].get_short_help_str(width - 6 - len("completion")).endswith("...")


@pytest.mark.parametrize("option", GLOBAL_OPTIONS)
def test_every_global_option_is_on_the_page(option: str) -> None:
    assert re.search(rf"^\| `{option} [A-Z]+` \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["list"], ["list"]),
        (["list", "--api", "http://a"], ["--api", "http://a", "list"]),
        (["run", "x", "--api=http://a", "--full"], ["--api=http://a", "run", "x", "--full"]),
        (["list", "--token-file", "t", "--tag", "a"], ["--token-file", "t", "list", "--tag", "a"]),
        (["show", "--", "--api"], ["show", "--", "--api"]),
        (["list", "--api"], ["--api", "list"]),
    ],
)
def test_global_options_may_follow_the_command(given: list[str], expected: list[str]) -> None:
    assert hoisted(given) == expected


def test_the_worst_code_of_several_pipelines_counts() -> None:
    assert exit_codes.worst(set()) == exit_codes.DONE
    assert exit_codes.worst({0, 3, 4}) == exit_codes.HELD
    assert exit_codes.worst({0, 3, 4, 1}) == exit_codes.FAILED


def test_ages_have_the_largest_unit() -> None:
    from datetime import UTC, datetime, timedelta

    now = datetime(2025, 1, 1, tzinfo=UTC)
    ages = [output.age(now - timedelta(seconds=seconds), now) for seconds in (-5, 59, 60, 3600, 86_400 * 40)]
    assert ages == ["0s", "59s", "1m", "1h", "40d"]
    assert output.age(None, now) == "never"


def test_only_the_commands_that_the_arguments_name_are_built() -> None:
    assert list(needed(["run", "film_dim"])) == ["run"]
    assert set(needed(["--api", "http://127.0.0.1:8000", "list", "run"])) == {"list", "run"}
    assert list(needed(["reconcile", "list", "--help"])) == list(ALL_COMMANDS)
    for arguments in ([], ["--help"], ["--version"], ["lsit"]):
        assert list(needed(arguments)) == list(ALL_COMMANDS)
