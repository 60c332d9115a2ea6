"""Fixtures of several tests."""

import pytest

from tests.helpers.running import create
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings


@pytest.fixture
def genres(connection: Connection, settings: Settings) -> Pipeline:
    return create(
        connection,
        settings,
        name="genres",
        source_query="SELECT id, name FROM content.genre",
        target_table="analytics.genres",
        key_columns=["id"],
    )
