"""docs/api.md lists the routes of the API."""

from tests import api_table


def test_the_page_lists_every_route_with_its_summary() -> None:
    assert api_table.PAGE.read_text("utf-8") == api_table.page(), "run `make api-table`"
