"""Checks of the cluster for `vitrine doctor`."""

from collections.abc import Iterator, Mapping
from contextlib import closing

from vitrine.connectors.elasticsearch import ElasticsearchSettings
from vitrine.connectors.elasticsearch.requests import Requests
from vitrine.connectors.elasticsearch.sweeping import ShortLease
from vitrine.errors import VitrineError
from vitrine.plugins import Diagnosis

SUBJECT = "Elasticsearch"


def diagnose(settings: ElasticsearchSettings, sources: Mapping[str, str]) -> Iterator[Diagnosis]:
    if settings.url is None:
        yield Diagnosis(SUBJECT, "ok", f"not configured; for targets es:index, {settings.needs}")
        return
    try:
        with closing(Requests(settings, "es:*", ShortLease())) as requests:
            version = str(requests.call(lambda client: client.info())["version"]["number"])
            health = str(requests.call(lambda client: client.cluster.health())["status"])
    except VitrineError as exc:
        yield Diagnosis(SUBJECT, "error", str(exc), "check VITRINE_ELASTICSEARCH_URL, the account and the cluster")
        return
    if health == "red":
        remedy = "see GET _cluster/allocation/explain of the cluster"
        yield Diagnosis(SUBJECT, "error", f"version {version}, but parts of the cluster are unavailable (red)", remedy)
    else:
        yield Diagnosis(SUBJECT, "ok", f"version {version}, {health}")
