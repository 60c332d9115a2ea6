"""Settings of Elasticsearch: what a user reads about a wrong or missing one."""

from typing import Any

import pytest

from vitrine.connectors.elasticsearch import ElasticsearchSettings
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError
from vitrine.plan import planner
from vitrine.settings import Settings

SETTINGS = Settings.model_validate({"database_url": "postgresql://localhost/none"})
MOVIES = Definition.model_validate(
    {
        "name": "movies",
        "source_query": "SELECT id FROM content.genre",
        "target_table": "es:movies",
        "key_columns": ["id"],
    }
)


def refusal(**given: Any) -> str:
    settings = SETTINGS.model_copy(update={"connectors": {"elasticsearch": given}} if given else {})
    with pytest.raises(ConfigError) as refused:
        planner.check(MOVIES, settings)
    return str(refused.value)


def test_a_target_without_a_configured_cluster_names_the_setting() -> None:
    assert refusal() == (
        "target 'es:movies' needs connector 'elasticsearch', which is not configured: set VITRINE_ELASTICSEARCH_URL,"
        " such as https://search.example.com:9200"
    )


def test_a_log_in_is_complete_and_single() -> None:
    canary = "canary-secret"
    only_user = refusal(url="http://localhost:9200", user="elastic")
    assert only_user == "VITRINE_ELASTICSEARCH_… are not valid: give user and password together"
    both = refusal(url="http://localhost:9200", user="elastic", password=canary, api_key=canary)
    assert both == "VITRINE_ELASTICSEARCH_… are not valid: give an api_key or a user, not both"


def test_a_key_that_cannot_be_sent_in_a_header_is_refused_without_it() -> None:
    text = refusal(url="http://localhost:9200", api_key="canary\nX-Header: 1")
    assert text == "VITRINE_ELASTICSEARCH_API_KEY is not valid: give one line of ASCII characters without spaces"


def test_a_secret_is_never_shown() -> None:
    given = {"url": "https://elastic:canary@localhost:9200", "api_key": "canary"}
    section = SETTINGS.model_copy(update={"connectors": {"elasticsearch": given}}).section(
        "elasticsearch", ElasticsearchSettings
    )
    assert "canary" not in repr(section)
    assert "canary" not in str(section)
