"""The command that runs a development server: devserver."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import output, process

if TYPE_CHECKING:
    from vitrine.plugins import DevelopmentServer

POLL_SECONDS = 0.5


def devserver(
    name: Annotated[
        str | None, typer.Argument(help="Connector whose server is started; without it, list them.", show_default=False)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 chooses a free one.", show_default="the usual one"),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder that keeps the data; without it, the data is removed at the end.")
    ] = None,
) -> None:
    """Run a real server for development and tests until Ctrl-C."""
    from vitrine import plugins

    if name is None:
        output.show(f"Development servers: {', '.join(plugins.with_devserver()) or 'none'}")
        return
    factory = plugins.devserver(name)
    process.exit_on_stop_signals()  # also during the download: nothing unfinished is left
    server = factory.start(folder, factory.default_port if port is None else port, output.show)
    try:
        _serve(server, folder)
    finally:
        server.stop()
    output.show(f"{server.title} is stopped.")


def _serve(server: "DevelopmentServer", folder: Path | None) -> None:
    """Show the address and wait for a signal; ConfigError if the server ends before."""
    import threading

    from vitrine.errors import ConfigError

    stop = threading.Event()
    process.on_stop_signals(stop.set)
    output.show(f"{server.title} is running at {server.url}, for this machine only and without a password.")
    output.show("The data is removed when it stops." if folder is None else f"The data is kept in {folder}.")
    output.show_lines(
        f"Use it in another terminal:\n\n    export {server.url_variable}={server.url}\n\nCtrl-C stops it."
    )
    while not stop.wait(POLL_SECONDS):
        if not server.is_running:
            raise ConfigError(f"{server.title} ended by itself; start it again", code="DEVSERVER_FAILED")
