"""E2: damaged documents of a search index found, repaired and verified, beside reading all documents once."""

from typing import Any

from bench import psql
from bench.cluster import Cluster
from bench.measuring import Result, Samples, judge, ratio_of, seconds_of
from bench.setup import Setup
from bench.tree import Installation

DAMAGED = 5
AT_MOST_MB = 200


def damaged_documents(
    setup: Setup, vitrine: Installation, cluster: Cluster, *, name: str, alias: str, query: str
) -> Result:
    """After a load of the pipeline `name`. A repair that leaves a difference is WRONG."""
    right = cluster.digest(alias)
    by_hand: list[float] = []
    ours: list[float] = []
    peak = 0.0
    repaired = True
    for number in range(setup.rounds):
        by_hand.append(seconds_of(lambda: _read_both(setup, cluster, alias, query)))
        _damage(cluster, alias, number)
        measured = vitrine.timed_run(name, "reconcile", "--repair")
        ours.append(measured.seconds)
        peak = max(peak, measured.peak_mb or 0)
        cluster.ask("POST", f"/{alias}/_refresh")
        repaired = repaired and cluster.digest(alias) == right
    taken, beside = Samples(tuple(ours)), Samples(tuple(by_hand))
    return Result(
        row="E2",
        workload=f"{DAMAGED} damaged of {setup.films:,} documents found and repaired; by hand: all read and hashed",
        bar=f"< {AT_MOST_MB} MB",
        verdict=judge(peak < AT_MOST_MB, right=repaired),
        by_hand=beside,
        ours=taken,
        ratio=ratio_of(taken, beside),
        note=f"{peak:.0f} MB",
        facts={"peak_mb": peak},
    )


def _read_both(setup: Setup, cluster: Cluster, alias: str, query: str) -> None:
    cluster.digest(alias)
    psql.run(
        setup.mart.url, f"SELECT count(*), sum(('x' || left(md5(q::text), 16))::bit(64)::bigint) FROM ({query}) AS q"
    )


def _damage(cluster: Cluster, alias: str, number: int) -> None:
    """Two documents get another title, two are deleted, one is added."""
    body: dict[str, Any] = {"size": 4, "_source": True, "query": {"match_all": {}}, "from": number * 10}
    chosen = cluster.ask("POST", f"/{alias}/_search", body)["hits"]["hits"]
    for hit in chosen[:2]:
        cluster.ask("POST", f"/{hit['_index']}/_update/{hit['_id']}", {"doc": {"title": "changed by hand"}})
    for hit in chosen[2:]:
        cluster.ask("DELETE", f"/{hit['_index']}/_doc/{hit['_id']}")
    added = f"00000000-0000-0000-0000-{number:012d}"
    index = chosen[0]["_index"]
    cluster.ask("PUT", f"/{index}/_doc/{added}", {**chosen[0]["_source"], "film_id": added})
    cluster.ask("POST", f"/{alias}/_refresh")
