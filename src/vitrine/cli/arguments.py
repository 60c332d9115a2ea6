"""Arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from vitrine.cli.completion import pipeline_names

Name = Annotated[
    str, typer.Argument(help="Name or id of the pipeline.", show_default=False, autocompletion=pipeline_names)
]
NameOrFile = Annotated[
    str,
    typer.Argument(help="Name of a pipeline, or a YAML file.", show_default=False, autocompletion=pipeline_names),
]
Env = Annotated[
    Path | None,
    typer.Option("--env", help="A file of NAME=value lines; they replace ${NAME} in the YAML.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object with the fields of the API, for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")]
