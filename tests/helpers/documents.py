"""Executes the commands of a document, and compares what it shows with what they print.

In a document, a block ```bash is executed, and a block ```text after it has lines of its output. Everything else is
text: commands that belong to another terminal are in the running text or indented.
"""

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
API = "http://127.0.0.1:8000"
"""The address of the API in the documents."""

_FENCE = re.compile(r"^```(bash|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^```\w+\n# (\S+\.\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECONDS = 240


@dataclass(frozen=True)
class Block:
    """Commands, and lines that their output contains."""

    commands: str
    shown: Sequence[str] = ()


def blocks(document: str, section: str | None = None) -> list[Block]:
    """The blocks of a document, or of one section."""
    found: list[Block] = []
    for language, content in _FENCE.findall(_text(document, section)):
        if language == "bash":
            found.append(Block(content))
        elif found and not found[-1].shown:
            found[-1] = Block(found[-1].commands, content.splitlines())
    return found


def files(document: str, section: str) -> list[tuple[str, str]]:
    """Name and content of the files that a section shows: blocks whose first line is a comment with a name."""
    return [(name, f"# {name}\n{content}") for name, content in _FILE.findall(_text(document, section))]


def _text(document: str, section: str | None) -> str:
    text = (ROOT / document).read_text("utf-8")
    return text if section is None else text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]


def execute(document: Sequence[Block], *, api: str, folder: Path, env: dict[str, str]) -> list[str]:
    """Paste the blocks into one shell, in order, and return the output of each; it fails if a command does."""
    marks = [f"--- end of block {number} ---" for number in range(len(document))]
    script = "".join(f"{one.commands}\necho '{mark}'\n" for one, mark in zip(document, marks, strict=True))
    finished = subprocess.run(
        ["bash", "-e", "-u", "-o", "pipefail"],
        input=script.replace(API, api),
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    outputs: list[str] = []
    rest = finished.stdout
    for mark in marks:
        output, found, rest = rest.partition(f"{mark}\n")
        assert found, finished.stdout
        outputs.append(output)
    return outputs


def missing(block: Block, output: str) -> Iterator[str]:
    """Lines that the document shows and the commands do not print; figures and spaces may differ."""
    printed = [comparable(line) for line in output.splitlines()]
    for line in block.shown:
        if line.strip() and not any(comparable(line) in one for one in printed):
            yield line


def comparable(line: str) -> str:
    return " ".join(re.sub(r"[0-9]+(?:[.,:][0-9]+)*", "0", line).split())
