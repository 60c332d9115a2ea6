"""Plain English in source and documentation: words that are images or spoken language are refused."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

REPLACEMENTS = {
    "somebody": "name the actor: the user, a runner, a session",
    "anybody": "name the actor: the user, a runner, a session",
    "nobody": "name the actor: no user, no runner, no session",
    "whoever": "name the actor: the user, a runner, a session",
    "told": "reported, logged, returned",
    "tells": "reports, logs, returns",
    "glances?": "poll, check",
    "misfits?": "reject",
    "patience": "timeout, grace period",
    "at will": "at any time",
    "puts? aside": "quarantine",
    "lets? go": "release",
    "go(?:es)? on": "continue",
    "giv(?:en|es?|ing) up": "abort",
    "comes? to": "reach",
    "(?:is|are|was) away": "unavailable",
    "looks? at": "check, read",
    "printed": "text format",
}

# (file, text around the word): the reason
ALLOWED: Mapping[tuple[str, str], str] = {
    ("src/vitrine/local_servers.py", '(*preferred, "nobody")'): "the name of a system user",
}

# Words of a phrase may be on two lines, the second of which begins a comment.
_GAP = r"\s+(?:(?:#|--|>)\s+)?"
_PATTERNS = {
    words: re.compile(rf"(?<![a-z])(?:{words.replace(' ', _GAP)})(?![a-z])", re.IGNORECASE) for words in REPLACEMENTS
}
_QUOTED = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def findings(text: str) -> Iterator[tuple[int, str]]:
    """Line and remedy for each refused word; names are searched word by word, text in backticks is not searched."""
    searched = _QUOTED.sub(lambda quoted: re.sub(r"[^\n]", "x", quoted[0]), text).replace("_", " ")
    for words, pattern in _PATTERNS.items():
        for found in pattern.finditer(searched):
            yield text.count("\n", 0, found.start()) + 1, f"'{found[0]}': write {REPLACEMENTS[words]}"


def without_allowed(file: str, text: str) -> str:
    for where, quoted in ALLOWED:
        if where == file:
            assert quoted in text, f"{file} no longer contains {quoted}; remove it from ALLOWED"
            text = text.replace(quoted, "")
    return text


def refused(files: Iterable[Path]) -> list[str]:
    names = {str(file.relative_to(ROOT)): file for file in files}
    return [
        f"{name}:{line}: {remedy}"
        for name, file in sorted(names.items())
        for line, remedy in sorted(findings(without_allowed(name, file.read_text("utf-8"))))
    ]


def test_the_source_is_plain_english() -> None:
    folders = [ROOT / "src", ROOT / "integrations"]
    files = [file for folder in folders for suffix in ("*.py", "*.sql") for file in folder.rglob(suffix)]
    assert refused(file for file in files if "migrations" not in file.parts) == []  # migrations never change


def test_the_documentation_is_plain_english() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "integrations").rglob("*.md")]
    assert refused([*pages, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]) == []


@pytest.mark.parametrize(
    "text",
    ["Somebody asked.", "the run goes on", "# the run goes\n# on", "-- a run that\n-- gives up", "def _is_told():"],
)
def test_a_refused_word_is_found_in_text_in_names_and_across_lines(text: str) -> None:
    assert len(list(findings(text))) == 1


@pytest.mark.parametrize("text", ["user `nobody`", "reprinted", "become total", "```\nnobody\n```", "an untold story"])
def test_quoted_terms_and_parts_of_words_are_not_refused(text: str) -> None:
    assert list(findings(text)) == []
