"""The short commands of the tests are forks of one process, and behave as new processes do."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.helpers import command_server
from tests.helpers.processes import environment, vitrine


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["list"], ["unknown"], ["apply", "genres.yaml", "--dry-run"], ["schema"], ["status", "--json"]],
    ids=" ".join,
)
def test_a_fork_answers_as_a_new_process_does(
    arguments: list[str], database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = "source_query: SELECT id FROM content.genre\ntarget_table: analytics.genres\nkey_columns: [id]\n"
    (tmp_path / "genres.yaml").write_text(f"name: genres\n{fields}", "utf-8")
    env = environment(database_url)
    assert command_server.can_run(env)
    forked = vitrine(*arguments, folder=tmp_path, env=env)
    monkeypatch.setattr(command_server, "can_run", Mock(return_value=False))
    new = vitrine(*arguments, folder=tmp_path, env=env)
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)


def test_a_command_that_takes_too_long_is_killed(database_url: str, tmp_path: Path) -> None:
    with (tmp_path / "output").open("w+") as output:
        streams = (output.fileno(), output.fileno(), output.fileno())
        with pytest.raises(TimeoutError):
            command_server.run(["runner"], tmp_path, environment(database_url), streams, seconds=0.5)
        assert command_server.run(["--version"], tmp_path, environment(None), streams, seconds=60) == 0


def test_variables_of_the_interpreter_need_a_new_process() -> None:
    env = environment(None)
    assert command_server.can_run({**env, "VITRINE_API_URL": "http://127.0.0.1:1"})
    assert not command_server.can_run({**env, "PYTHONPATH": "elsewhere"})
    assert not command_server.can_run({**env, "LC_ALL": "C"})
