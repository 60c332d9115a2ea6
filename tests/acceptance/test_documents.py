"""The commands of README, tutorial and demonstration, executed as they stand there."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import documents, elasticsearch, scraping
from tests.helpers.documents import Block
from tests.helpers.folders import open_folder
from tests.helpers.processes import environment, free_port, started
from tests.helpers.waiting import wait_until

TOUR = ("README.md", "Your first pipeline"), ("README.ru.md", "Первый пайплайн")
SIZE = ("--films", "100", "--ratings", "3000")


class Served:
    """`vitrine up` in a folder like a clone, with its environment in .venv."""

    def __init__(self, folder: Path, api: str) -> None:
        self.folder = folder
        self.api = api

    def execute(self, document: list[Block], **variables: str) -> list[str]:
        return documents.execute(document, api=self.api, folder=self.folder, env=environment(None, **variables))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    # the path is short, as a socket needs it
    with open_folder("docs-", parent="/tmp") as folder:
        (folder / ".venv").symlink_to(sys.prefix)
        port = free_port()
        with started(["up", *SIZE], folder, environment(None, VITRINE_API_PORT=str(port))) as up:
            api = f"http://127.0.0.1:{port}"

            def answers_in_time() -> bool:
                assert up.process.poll() is None, up.output()
                return scraping.answers(f"{api}/health")

            wait_until(answers_in_time, 120, "the API and its runner answer")
            yield Served(folder, api)


def answers(output: str) -> Iterator[Any]:
    """Every indented JSON document in the output."""
    for found in re.finditer(r"^\{\n.*?^\}$", output, re.MULTILINE | re.DOTALL):
        yield json.loads(found[0])


def check(document: list[Block], outputs: list[str]) -> None:
    """Every line that the document shows was printed."""
    assert document
    for block, output in zip(document, outputs, strict=True):
        assert list(documents.missing(block, output)) == [], output


@pytest.mark.parametrize(("document", "section"), TOUR)
def test_the_first_pipeline_of_a_readme_works(served: Served, document: str, section: str) -> None:
    (block,) = documents.blocks(document, section)
    (output,) = served.execute([block])
    assert "top_genres: source = target" in output
    assert "top_genres is IDLE" in output
    request, *paused = answers(output)
    assert (request["pipeline"], request["state"]) == ("top_genres", "succeeded")
    assert paused[-1]["generation_open"]
    assert paused[-1]["generation_rows"] >= 500
    # the other one begins it again
    served.execute([Block(".venv/bin/vitrine delete slow_ratings --yes")])


def test_the_tutorial_works(served: Served) -> None:
    tutorial = documents.blocks("docs/tutorial.md")
    outputs = served.execute(tutorial)
    check(tutorial, outputs)
    arrived = next(output for output in outputs if "Star Trek (2009)" in output)
    assert "Solo: A Star Wars Story" in arrived
    assert "first_screening" in outputs[-2]


def test_the_demonstration_works(served: Served, elasticsearch_url: str) -> None:
    demonstration = documents.blocks("docs/demo.md")
    with elasticsearch.temporary_indexes(elasticsearch_url, "search_films"):
        outputs = served.execute(demonstration, VITRINE_ELASTICSEARCH_URL=elasticsearch_url)
    check(demonstration, outputs)
    (state,) = [one for output in outputs for one in answers(output) if "generation_rows" in one]
    assert 0 < state["generation_rows"] < 3000
    assert state["generation_cursor"]
    ended = [one for output in outputs for one in answers(output) if one.get("pipeline") == "all_ratings"][-1]
    # the run continues where it was paused: it reads fewer rows than it has written in both parts together
    assert 0 < ended["run"]["rows_read"] <= ended["run"]["rows_written"] - state["generation_rows"]


def test_a_transform_in_a_module_of_the_user_works_as_the_page_shows_it(served: Served) -> None:
    section = "Your own, without changing Vitrine"
    for name, content in documents.files("docs/transforms.md", section):
        path = served.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, "utf-8")
    (output,) = served.execute(documents.blocks("docs/transforms.md", section), PATH=f"{sys.prefix}/bin:{os.defpath}")
    assert "shout" in output
    assert "loud_films: finished, 100 rows read, 100 written" in output


def test_a_document_that_shows_something_else_is_found() -> None:
    block = Block("true", ["screenings: finished, 980 rows read", "never printed"])
    assert list(documents.missing(block, "screenings:   finished, 98 rows read\n")) == ["never printed"]
