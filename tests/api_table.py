"""Writes the table of routes in docs/api.md from the OpenAPI document. `make api-table`."""

from pathlib import Path

from vitrine.api.app import create_app
from vitrine.api.parameters import PREFIX
from vitrine.settings import Settings

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
BEGIN, END = "<!-- routes: written by make api-table -->\n", "<!-- end of routes -->\n"


def table() -> str:
    """One line per route, without the prefix."""
    app = create_app(Settings.model_validate({"database_url": "postgresql://nobody@127.0.0.1:1/none"}))
    lines = ["| Route | What it does |", "|---|---|"]
    for path, operations in app.openapi()["paths"].items():
        short = path.removeprefix(PREFIX)
        lines += [f"| `{method.upper()} {short}` | {one['summary']} |" for method, one in operations.items()]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with the table as it must be."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
