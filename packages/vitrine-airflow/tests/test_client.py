"""The client without Airflow: which calls are repeated, and how refusals read."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from scripted_api import Reply, Script, problem, scripted
from vitrine_airflow import calls, client
from vitrine_airflow.calls import Call
from vitrine_airflow.client import AsyncClient, Client
from vitrine_airflow.endpoint import Endpoint, read_connection
from vitrine_airflow.errors import ApiError, Conflict, Refused, Unavailable

Answer = TypeVar("Answer")
Send = Callable[[Endpoint, Call[Any]], Any]

REQUESTED = Reply(202, {"request_id": "r1", "status": "RUN_REQUESTED", "pipeline": "films"})
LOST = Reply(status=None)


def send_blocking(endpoint: Endpoint, call: Call[Any]) -> Any:
    return Client(endpoint).send(call)


def send_in_a_loop(endpoint: Endpoint, call: Call[Any]) -> Any:
    return asyncio.run(AsyncClient(endpoint).send(call))


@pytest.fixture(params=[send_blocking, send_in_a_loop], ids=["blocking", "async"])
def send(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Send:
    monkeypatch.setattr(client, "FIRST_WAIT_SECONDS", 0.01)
    return request.param


def endpoint(script: Script, **fields: Any) -> Endpoint:
    return Endpoint(f"http://127.0.0.1:{script.port}", token="vtr_secret", **fields)


def refusal(send: Send, reply: Reply, **fields: Any) -> ApiError:
    with scripted(reply) as script, pytest.raises(ApiError) as caught:
        send(endpoint(script, retry_for=0, **fields), calls.run("films", {}))
    return caught.value


def test_a_request_whose_answer_is_lost_is_made_again(send: Send) -> None:
    with scripted(LOST, problem(503, "DATABASE", "the database does not respond"), REQUESTED) as script:
        assert send(endpoint(script), calls.run("films", {"mode": "full"})).request_id == "r1"
    assert script.asked == [("POST", "/api/v1/pipelines/films/run", {"mode": "full"})] * 3
    assert script.authorization == ["Bearer vtr_secret"] * 3


def test_a_refusal_is_not_repeated_and_has_the_sentence_of_the_api(send: Send) -> None:
    refused = refusal(send, problem(404, "NOT_FOUND", "there is no pipeline 'films'"))
    assert isinstance(refused, Refused)
    assert (str(refused), refused.code) == ("there is no pipeline 'films'", "NOT_FOUND")
    assert isinstance(refusal(send, problem(409, "DISABLED", "pipeline 'films' is disabled")), Conflict)


def test_attempts_end_after_the_time_of_the_connection(send: Send) -> None:
    error = refusal(send, problem(503, "TOO_MANY_WAITING", "too many clients wait", Retry_After="5"))
    assert isinstance(error, Unavailable)
    assert error.retry_after == 5


def test_an_api_that_is_not_there_is_named_with_its_address(send: Send) -> None:
    with scripted() as script:
        pass
    with pytest.raises(Unavailable, match=rf"http://127.0.0.1:{script.port} cannot be reached"):
        send(endpoint(script, retry_for=0), calls.whoami())


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (Reply(200, b"<html>"), "not as an API of Vitrine"),
        (Reply(202, {"another": "API"}), "not as an API of Vitrine"),
        (Reply(404, b"<html>"), "not as an API of Vitrine"),
        (Reply(301, None, {"Location": "https://elsewhere/"}), "redirects to https://elsewhere/"),
        (problem(404, "NO_ROUTE", "there is no such route"), "the name of the pipeline is empty"),
        (Reply(502, b"<html>"), "answers 502"),
    ],
)
def test_another_server_is_recognised(send: Send, reply: Reply, sentence: str) -> None:
    error = refusal(send, reply)
    assert sentence in str(error)
    assert "vtr_secret" not in str(error)


def test_the_name_of_a_pipeline_cannot_leave_its_place_in_the_address() -> None:
    assert calls.status("../tokens?x=1").path == "/pipelines/..%2Ftokens%3Fx%3D1/status"


# -- connections ------------------------------------------------------------------------------------------------------


def connection(**fields: Any) -> Endpoint:
    empty: dict[str, Any] = dict.fromkeys(("host", "port", "schema", "password", "extra"))
    return read_connection("marts", **(empty | fields))


def test_a_connection_has_https_and_its_port_by_default() -> None:
    found = connection(host="vitrine.example.com", password=" vtr_secret\n")
    assert (found.url, found.token) == ("https://vitrine.example.com:443", "vtr_secret")
    assert connection(host="localhost", schema="HTTP").url == "http://localhost:8000"
    assert connection(host="::1", port=8443).url == "https://[::1]:8443"


def test_the_extras_of_a_connection_may_be_numbers_or_text() -> None:
    found = connection(host="x", extra='{"ca_file": "/etc/ca.pem", "timeout": "5", "retry_for": 0}')
    assert (found.ca_file, found.timeout, found.retry_for) == ("/etc/ca.pem", 5, 0)
    assert connection(host="x", extra='{"ca_file": "", "timeout": null}').timeout == 30


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "Host is empty"),
        ({"host": "http://x"}, "Host must be a name"),
        ({"host": "x", "schema": "ftp"}, "Schema must be http or https"),
        ({"host": "x", "extra": "{"}, "Extra is not JSON"),
        ({"host": "x", "extra": "[]"}, "Extra is not a JSON object"),
        ({"host": "x", "extra": '{"verify": false}'}, "Extra has verify; it may have ca_file"),
        ({"host": "x", "extra": '{"timeout": 0}'}, "timeout in Extra must be a number of seconds"),
        ({"host": "x", "extra": '{"retry_for": "long"}'}, "retry_for in Extra must be a number of seconds"),
        ({"host": "x", "extra": '{"timeout": "nan"}'}, "timeout in Extra must be a number of seconds"),
    ],
)
def test_a_field_that_is_wrong_is_named(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused, match=f"^connection 'marts': {sentence}"):
        connection(**fields)


def test_a_token_is_not_shown() -> None:
    assert "vtr_secret" not in repr(connection(host="x", password="vtr_secret"))


def test_a_ca_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing.pem", tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(Refused, match=r"missing\.pem cannot be used: No such file or directory"):
        Client(Endpoint("https://x", ca_file=str(missing)))
    with pytest.raises(Refused, match=r"empty\.pem cannot be used"):
        Client(Endpoint("https://x", ca_file=str(empty)))
