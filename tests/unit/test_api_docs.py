"""docs/api.md lists the routes of the API."""

import subprocess
import sys

from tests import api_table


def test_the_page_lists_every_route_with_its_summary() -> None:
    assert api_table.PAGE.read_text("utf-8") == api_table.page(), "run `make api-table`"


def test_commands_do_not_build_the_examples_of_the_document() -> None:
    code = (
        "import sys, vitrine.operations.bodies.pipelines;"
        " from vitrine.operations.bodies.common import pipeline_example;"
        " sys.stdout.write(str(pipeline_example.cache_info().currsize))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0", "")
