"""What a runner counts, and the port where it tells."""

import socket
import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.helpers.hosts import ALLOWED, BAD_HOSTS, GOOD_HOSTS
from tests.helpers.scraping import Scraped, get, parse
from vitrine import metrics
from vitrine.errors import ConfigError
from vitrine.runner import probes


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """Figures of this test alone."""
    monkeypatch.setattr(metrics, "_meters", None)
    return metrics.switch_on()


def scraped(registry: CollectorRegistry) -> Scraped:
    return parse(generate_latest(registry).decode())


def test_nothing_is_counted_before_somebody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_meters", None)
    metrics.run_started("genres")
    metrics.run_ended("genres", "success", 0.1)
    metrics.slots(used=1, of=4)
    assert scraped(metrics.switch_on()).value("vitrine_runs_total", pipeline="genres", outcome="success") is None


def test_switching_on_twice_goes_on_counting(registry: CollectorRegistry) -> None:
    assert metrics.switch_on() is registry


def test_the_first_run_of_a_pipeline_sets_its_counters_to_nought(registry: CollectorRegistry) -> None:
    metrics.run_started("genres")
    found = scraped(registry)
    counters = {name for name in found.names if name.startswith("vitrine_") and name.endswith("_total")}
    assert len(counters) == 10
    assert {value for name in counters for value in found.samples[name].values()} == {0.0}
    assert found.value("vitrine_runs_total", pipeline="genres", outcome="failed") == 0


def test_a_run_is_counted_by_its_end_its_rows_and_its_time(registry: CollectorRegistry) -> None:
    metrics.batch_written("genres", read=10, written=7, deleted=2, rejected=1, seconds=0.2)
    metrics.batch_written("genres", read=0, written=3, deleted=0, rejected=0, seconds=9)  # a load becomes visible
    metrics.run_ended("genres", "retried", 3.0)
    metrics.retried("genres")
    found = scraped(registry)
    rows = {kind: found.value(f"vitrine_rows_{kind}_total", pipeline="genres") for kind in ("read", "written")}
    assert rows == {"read": 10, "written": 10}
    assert found.value("vitrine_rows_deleted_total", pipeline="genres") == 2
    assert found.value("vitrine_rows_rejected_total", pipeline="genres") == 1
    assert found.value("vitrine_runs_total", pipeline="genres", outcome="retried") == 1
    assert found.value("vitrine_retries_total", pipeline="genres") == 1
    assert found.value("vitrine_batch_seconds_count") == 1
    assert found.value("vitrine_run_seconds_bucket", pipeline="genres", le="1.0") == 0
    assert found.value("vitrine_run_seconds_bucket", pipeline="genres", le="5.0") == 1


def test_a_takeover_is_counted_and_a_crash_loop_besides(registry: CollectorRegistry) -> None:
    metrics.lease_expired("genres", crash_loop=False)
    metrics.lease_expired("genres", crash_loop=True)
    found = scraped(registry)
    assert found.value("vitrine_lease_takeovers_total", pipeline="genres") == 2
    assert found.value("vitrine_crash_loops_total", pipeline="genres") == 1


def test_slots_are_used_or_free(registry: CollectorRegistry) -> None:
    metrics.slots(used=1, of=4)
    found = scraped(registry)
    assert [found.value("vitrine_runner_slots", state=state) for state in ("used", "free")] == [1, 3]


def test_the_port_tells_metrics_life_and_readiness_and_nothing_else(registry: CollectorRegistry) -> None:
    ready = threading.Event()
    with probes.serving("127.0.0.1", 0, registry, ready.is_set) as port:
        assert get(port, "/live")[0] == 200
        assert get(port, "/ready")[0] == 503
        assert parse(get(port, "/metrics")[1]).value("vitrine_runner_ready") == 0
        ready.set()
        assert get(port, "/ready") == (200, "ready\n")
        assert parse(get(port, "/metrics")[1]).value("vitrine_runner_ready") == 1
        assert get(port, "/")[0] == 404
    assert get(port, "/live")[0] == 0


@pytest.mark.promise("K3")
def test_the_port_checks_the_host_header_as_the_api_does(registry: CollectorRegistry) -> None:
    with probes.serving("127.0.0.1", 0, registry, lambda: True, names=ALLOWED) as port:
        for path in ("/metrics", "/ready", "/live", "/"):
            expected = 404 if path == "/" else 200
            assert {host: asked(port, path, host) for host in GOOD_HOSTS} == dict.fromkeys(GOOD_HOSTS, expected)
            assert [host for host in BAD_HOSTS if asked(port, path, host) not in (400, 421)] == []
            assert asked(port, path) == 400
            assert asked(port, path, "localhost", "evil.example") == 400
            assert asked(port, path, "localhost", "localhost") == 400


def asked(port: int, path: str, *hosts: str) -> int:
    """The status of a request with exactly these Host headers."""
    headers = "".join(f"Host: {host}\r\n" for host in hosts)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode("latin1"))
        return int(connection.recv(65536).split(b" ", 2)[1])


def test_a_port_that_is_taken_is_told_with_the_remedy(registry: CollectorRegistry) -> None:
    def never() -> bool:
        return False

    with (
        probes.serving("127.0.0.1", 0, registry, never) as port,
        pytest.raises(ConfigError, match=rf"port {port} .* is in use .* VITRINE_METRICS_PORT"),
        probes.serving("127.0.0.1", port, CollectorRegistry(), never),
    ):
        pass
