"""The files of the migrations: numbered without a gap, and readable from the installed package."""

import re
from importlib.resources import files

from vitrine.store.migrate import newest_revision, revisions


def names() -> list[str]:
    return sorted(one.name for one in files("vitrine.store").joinpath("migrations").iterdir() if one.is_file())


def test_every_file_is_a_migration_with_a_number_of_its_own() -> None:
    assert [name for name in names() if not re.fullmatch(r"[0-9]{4}_[a-z_]+\.sql", name)] == []
    assert [name[:4] for name in names()] == [f"{number:04}" for number in range(1, len(names()) + 1)]


def test_revisions_are_the_numbers_of_the_files_the_newest_first() -> None:
    assert revisions() == [name[:4] for name in reversed(names())]
    assert newest_revision() == names()[-1][:4]
