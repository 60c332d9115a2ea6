"""The command that makes a project folder: init."""

from pathlib import Path
from typing import Annotated

import typer

from vitrine.cli import output

MARKER = ".vitrine-project"

ENV = """\
# Settings of this project; Vitrine reads this file in the folder where it is started. Keep it out of version control.
# Every setting: `vitrine --help`, and .env.sample in the repository of Vitrine.

# The database with the store (schema etl) and the marts; also the default source. Without it, `vitrine up` starts an
# embedded PostgreSQL.
# VITRINE_DATABASE_URL=postgresql://vitrine:choose-one@127.0.0.1:5432/cinema

# An account that may only read, for the source.
# VITRINE_SOURCES__DEFAULT=postgresql://reader:choose-one@127.0.0.1:5432/cinema

# Schemas that pipelines may read.
# VITRINE_ALLOWED_SOURCE_SCHEMAS=content,ugc

# Elasticsearch, for targets es:index.
# VITRINE_ELASTICSEARCH_URL=https://search.example.com:9200

# Work through the API of another machine instead of the database.
# VITRINE_API_URL=https://vitrine.example.com
"""

GITIGNORE = """\
.env
.vitrine/
"""

EXAMPLE = """\
# yaml-language-server: $schema=pipeline.schema.json
# An example. `vitrine discover` lists your own tables; `vitrine discover TABLE --write pipelines/TABLE.yaml` writes a
# pipeline for one of them.
name: top_genres
description: Films per genre
source_query: |
  SELECT g.id, g.name, count(gf.film_work_id) AS films
    FROM content.genre g
    LEFT JOIN content.genre_film_work gf ON gf.genre_id = g.id
   GROUP BY g.id, g.name
target_table: analytics.top_genres
key_columns: [id]
schedule_interval: 5m
enabled: false   # the first `vitrine run top_genres` needs true
"""


def init(
    folder: Annotated[Path, typer.Argument(help="The folder; it is created if it does not exist.")] = Path(),
) -> None:
    """Make a project folder; existing files are kept.

    .env with comments, pipelines/ with an example, .gitignore.
    """
    from vitrine import pipeline_files
    from vitrine.errors import ConfigError

    files = {
        folder / ".env": ENV,
        folder / ".gitignore": GITIGNORE,
        folder / "pipelines" / "top_genres.yaml": EXAMPLE,
        folder / "pipelines" / pipeline_files.SCHEMA_FILE: pipeline_files.schema_text(),
        folder / MARKER: "A project of Vitrine.\n",
    }
    # the example is for an empty project: beside pipelines of a user, `apply` would add it to them
    has_pipelines = (folder / "pipelines").is_dir() and any((folder / "pipelines").glob("*.y*ml"))
    if has_pipelines:
        del files[folder / "pipelines" / "top_genres.yaml"]
    try:
        for file, text in files.items():
            output.show(f"{'created' if _write_new(file, text) else 'kept   '}  {file}")
    except OSError as exc:
        raise ConfigError(f"cannot write '{exc.filename}': {exc.strerror}", code="NO_FILE") from exc
    output.show_lines(_next_steps(folder))


def _write_new(file: Path, text: str) -> bool:
    """Whether the file was created; an existing one is never changed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        # .env will contain passwords
        file.touch(0o600 if file.name == ".env" else 0o666, exist_ok=False)
    except FileExistsError:
        return False
    file.write_text(text, "utf-8")
    return True


def _next_steps(folder: Path) -> str:
    there = "" if folder == Path() else f"cd {folder}, then "
    return (
        f"\nNext: {there}give VITRINE_DATABASE_URL in .env, `vitrine migrate`, `vitrine doctor`, `vitrine discover`,\n"
        "`vitrine apply pipelines`. To look around without a database: `vitrine demo`."
    )
