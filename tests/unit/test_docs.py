"""The documentation matches the code: the status diagram, the links, the list of settings."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import AliasChoices

from tests.helpers import command_lines
from vitrine.api.app import STATUS_OF_CODE, STATUS_OF_GROUP
from vitrine.core.status import RequestKind, diagram
from vitrine.definition import connectors
from vitrine.definition.model import Definition, Options
from vitrine.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "packages").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def _prose(page: Path) -> str:
    """Without code, where brackets and parentheses mean something else."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.DOTALL)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_status_diagram_is_the_one_of_the_table() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    _, _, rest = page.partition("<!-- status diagram: begin -->\n```mermaid\n")
    shown, _, _ = rest.partition("\n```\n<!-- status diagram: end -->")
    assert shown == diagram()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(_prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in _anchors(target), f"{page.name} links to {link}"


def _code(page: Path) -> Iterator[str]:
    """Every line of code without its comment, which is in the language of the page."""
    fenced = False
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif (fenced or line.startswith("    ")) and (code := re.sub(r"(^|\s+)(#|--) .*$", "", line).rstrip()):
            yield code


def test_both_readmes_have_the_same_commands() -> None:
    assert list(_code(ROOT / "README.ru.md")) == list(_code(ROOT / "README.md"))


def _variables() -> Iterator[str]:
    """Every variable that the settings and the sections of the connectors read."""
    # values of sections are given in code, or read by the section itself
    yield from (f"VITRINE_{name.upper()}" for name in Settings.model_fields if name != "connectors")
    for connector in connectors.installed().values():
        for name, field in connector.settings.model_fields.items():
            aliases = field.validation_alias
            choices = aliases.choices if isinstance(aliases, AliasChoices) else ()
            yield str(choices[0]) if choices else f"VITRINE_{connector.name.upper()}_{name.upper()}"


def test_every_setting_is_in_the_sample() -> None:
    sample = (ROOT / ".env.sample").read_text("utf-8")
    for name in _variables():
        assert re.search(rf"^# {name}(__\w+)?=", sample, flags=re.MULTILINE), name


def _options() -> list[str]:
    """Options that every pipeline has, and those of connectors."""
    specs = [spec for one in connectors.installed().values() for spec in (one.source, one.sink) if spec is not None]
    return list(dict.fromkeys([*Options.model_fields, *(name for spec in specs for name in spec.options.model_fields)]))


def test_the_sample_sets_nothing() -> None:
    lines = (ROOT / ".env.sample").read_text("utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []


@pytest.mark.parametrize("name", [*Definition.model_fields, *_options()])
def test_every_field_of_a_pipeline_is_explained(name: str) -> None:
    assert f"| `{name}` |" in (ROOT / "docs" / "pipelines.md").read_text("utf-8")


def test_every_status_of_an_error_is_on_the_page_of_the_api() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    listed = {int(one) for row in re.findall(r"^\| ([0-9, ]+) \|", page, flags=re.MULTILINE) for one in row.split(",")}
    assert {*STATUS_OF_CODE.values(), *STATUS_OF_GROUP.values()} <= listed


@pytest.mark.parametrize("code", STATUS_OF_CODE)
def test_a_code_with_its_own_status_has_a_remedy(code: str) -> None:
    assert re.search(
        rf"^\| .*`{code}`.* \[{STATUS_OF_CODE[code]}\]",
        (ROOT / "docs" / "pipelines.md").read_text("utf-8"),
        re.MULTILINE,
    )


def test_the_example_of_a_proxy_passes_the_websocket_of_the_console() -> None:
    example = (ROOT / "docs" / "access.md").read_text("utf-8").partition("```nginx\n")[2].partition("```")[0]
    for line in ("proxy_http_version 1.1;", "Upgrade $http_upgrade;", "Connection $connection_upgrade;"):
        assert line in example


def test_every_operation_of_the_audit_log_is_on_its_page() -> None:
    page = (ROOT / "docs" / "access.md").read_text("utf-8")
    source = "\n".join(file.read_text("utf-8") for file in (ROOT / "src" / "vitrine" / "service").rglob("*.py"))
    written = set(re.findall(r'"((?:pipelines|state|tokens|sessions)\.[a-z_]+)"', source))
    operations = written | {f"pipelines.{kind}" for kind in RequestKind}
    # an apply is recorded as the changes that it makes
    assert [
        one for one in sorted(operations - {"pipelines.apply"}) if f"| `{one}`" not in page and f", `{one}`" not in page
    ] == []


COMMAND = re.compile(
    r"(?:^|`| {4}|&& |\| |; )(?:\.venv/bin/)?vitrine ((?:--\S+ \S+ )*[a-z][^`\n|&;#<>]*)", re.MULTILINE
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_has_its_options(page: Path) -> None:
    if page.name == "CHANGELOG.md":  # it names what former releases had
        return
    text = page.read_text("utf-8")
    code = re.findall(r"^```\w*\n(.*?)^```|(^ {4}.+$)|(`vitrine [^`]+`)", text, flags=re.MULTILINE | re.DOTALL)
    found = [line for parts in code for part in parts for line in COMMAND.findall(part)]
    assert {line: problem for line in found if (problem := command_lines.unknown(line.split()))} == {}
