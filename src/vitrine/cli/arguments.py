"""Arguments that several commands share."""

from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(help="Name or id of the pipeline.", show_default=False)]
