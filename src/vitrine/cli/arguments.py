"""Arguments that several commands share, and the completion of their values in a shell."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from vitrine.cli import output

PROGRAM = "vitrine"


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.", show_default=False)],
) -> None:
    """Show the script for completion in a shell.

    It completes commands, options and names of pipelines.

    \b
    bash:  source <(vitrine completion bash)               in ~/.bashrc
    zsh:   source <(vitrine completion zsh)                in ~/.zshrc, after compinit
    fish:  vitrine completion fish | source                in ~/.config/fish/config.fish
    """
    from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage] – Typer has no other

    output.show_lines(
        get_completion_script(prog_name=PROGRAM, complete_var=f"_{PROGRAM.upper()}_COMPLETE", shell=shell)
    )


def prepare_completion() -> None:
    """Let Typer answer its own scripts; it does so by itself only with its options to install them."""
    from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage]

    completion_init()


def pipeline_names(incomplete: str) -> list[str]:
    """Names of pipelines that begin like this; none if database or API do not answer."""
    from vitrine.cli import backends
    from vitrine.errors import VitrineError
    from vitrine.operations.bodies.filters import EVERY

    try:
        with backends.opened() as backend:
            pages = backend.definitions.pages(EVERY)
            return [name for page in pages for name in page.names if name.startswith(incomplete)]
    except (VitrineError, OSError):
        return []


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
