"""Arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(help="Name or id of the pipeline.", show_default=False)]
Env = Annotated[
    Path | None,
    typer.Option("--env", help="A file of NAME=value lines; they replace ${NAME} in the YAML.", show_default=False),
]
