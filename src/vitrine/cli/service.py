"""Commands of the service: migrate, api, runner, doctor."""

import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import building, exit_codes, output, process
from vitrine.cli.arguments import AsJson

if TYPE_CHECKING:
    from collections.abc import Callable

    from vitrine.operations.bodies.overview import DoctorReport
    from vitrine.settings import Settings
    from vitrine.store.roles import Roles

log = logging.getLogger(__name__)


def doctor(as_json: AsJson = False) -> None:
    """Examine the installation, and say how to repair it.

    Settings, database, store, accounts, clock, sources, Elasticsearch, runners and webhook. Every line is ok, a warning
    or an error, with its remedy. Exit code 0 without an error, otherwise 1. With --api, the API and its token are
    examined.
    """
    report = _report()
    if as_json:
        output.show_body(report)
    else:
        _show(report)
    sys.exit(exit_codes.DONE if report.healthy else exit_codes.FAILED)


def _report() -> "DoctorReport":
    from vitrine.errors import ConfigError

    try:
        remote = building.load_settings().api_url is not None
    except ConfigError:
        remote = False  # the settings are wrong, which is the first line of the report
    if remote:
        from vitrine.cli.backends.remote import examine_api

        return examine_api(building.load_settings())
    from vitrine.operations import doctor

    return doctor.examine(building.service_settings)


def _show(report: "DoctorReport") -> None:
    from textwrap import wrap

    from vitrine.text import green, red, yellow

    colours = {"ok": green, "warning": yellow, "error": red}
    room = max(30, (output.terminal_width() or 10_000) - 9)
    for one in report.checks:
        first, *others = wrap(f"{one.subject}: {one.text}", room)
        output.show_marked(colours[one.level](f"{one.level:<7}"), first)
        for line in others:
            output.show(f"{'':<7}  {line}")
        if one.remedy:
            for number, line in enumerate(wrap(one.remedy, room - 4)):
                output.show(f"{'':<7}  {'→ ' if number == 0 else '  '}{line}")
    errors = sum(one.level == "error" for one in report.checks)
    warnings = sum(one.level == "warning" for one in report.checks)
    output.show(f"{errors} error(s), {warnings} warning(s)")


def migrate(
    roles: Annotated[
        bool,
        typer.Option("--roles", help="Also create the restricted roles for reader, runner and API, with their rights."),
    ] = False,
    role_prefix: Annotated[
        str | None, typer.Option(help="How the names of the roles begin.", show_default="vitrine, or as before")
    ] = None,
    print_sql: Annotated[
        bool, typer.Option("--print-sql", help="With --roles: show the statements for an administrator, run none.")
    ] = False,
    reader_sql: Annotated[
        bool, typer.Option("--reader-sql", help="Show the statements that prepare a further source for its reader.")
    ] = False,
) -> None:
    """Create or upgrade the store (schema etl).

    It can be repeated, and run by several processes at once. Roles that were created before get their rights on new
    tables.
    """
    from vitrine.store.roles import DEFAULT_PREFIX, Roles, apply_roles, find_prefix, reader_script

    building.refuse_api("migrate")
    if reader_sql:
        script = reader_script(Roles.of(role_prefix or DEFAULT_PREFIX), building.places(building.load_settings()))
        output.show_lines("\n".join(f"{statement};" for statement in script))
        return
    if print_sql and not roles:
        raise typer.BadParameter("--print-sql needs --roles")
    settings = building.service_settings()
    if print_sql:
        _print_roles(settings, role_prefix)
        return
    from vitrine.store.migrate import migrate as migrate_store

    revision = migrate_store(settings.store_url)
    with building.connect_store(settings) as store:
        prefix = role_prefix or find_prefix(store) or (DEFAULT_PREFIX if roles else None)
        if prefix is not None:
            names = Roles.of(prefix)
            for statement in apply_roles(store, names, building.places(settings), sources=roles):
                output.show(f"{statement.partition(chr(10))[0]};")
            if roles:
                _show_next_steps(names)
    output.show(f"The store is at revision {revision}.")


def _print_roles(settings: "Settings", prefix: str | None) -> None:
    from vitrine.store import roles

    with building.connect_store(settings) as store:
        names = roles.Roles.of(prefix or roles.find_prefix(store) or roles.DEFAULT_PREFIX)
        statements = roles.plan_roles(store, names, building.places(settings))
        output.show_lines("\n".join(f"{statement.as_string(store)};" for statement in statements))


def _show_next_steps(names: "Roles") -> None:
    from vitrine.store import roles

    output.show_lines("\nThe roles are up to date. Create accounts that log in as their members, for example:\n")
    for line in roles.role_hints(names):
        output.show(f"  {line}")
    output.show_lines(
        "\nThen set VITRINE_DATABASE_URL of `vitrine api` and of `vitrine runner` to their own accounts, and"
        "\nVITRINE_SOURCES__DEFAULT of both to the reader. Repeat the command after new tables in the sources.\n"
    )


def api() -> None:
    """Serve the REST API.

    Its address is VITRINE_API_HOST and VITRINE_API_PORT.
    """
    building.refuse_api("api")
    with building.requires_extra("api", "the API"):
        from vitrine.api import server

    process.allow_open_files()
    settings = building.logging_settings()
    settings.source_url("default")
    scheme = "https" if settings.tls_cert else "http"
    address = f"{scheme}://{settings.api_host}:{settings.api_port}"
    attach = building.console(settings)
    served = f"API at {address}" if attach is None else f"API at {address}, console at {address}/console"
    server.serve(settings, ready=lambda: _log_start(served), attach=attach)


def runner(
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Pipelines to run at the same time.")] = 4,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port for /metrics, /ready and /live; 0 for none. Default: VITRINE_METRICS_PORT, which is 0.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Claim requested pipelines and run them.

    Several runners can work at the same time. SIGTERM releases the runs. Exit code 1 when a run hangs in user code:
    start the runner again.
    """
    import threading

    from vitrine.definition import connectors
    from vitrine.runner.worker import PipelineManager

    building.refuse_api("runner")
    process.tune_for_rows()
    settings = building.logging_settings()
    settings.source_url("default")
    connectors.preload(settings)
    stop = threading.Event()
    manager = PipelineManager(
        settings,
        building.dispatcher(settings, stop),
        name=building.runner_name(),
        concurrency=concurrency,
        stop=stop,
    )
    port = settings.metrics_port if metrics_port is None else metrics_port
    with _probes(settings, port, manager.is_ready) if port else nullcontext():
        process.on_stop_signals(manager.request_stop)
        _log_start("runner started")
        if not manager.run():
            process.abandon()


def _probes(settings: "Settings", port: int, is_ready: "Callable[[], bool]") -> AbstractContextManager[object]:
    from vitrine import metrics
    from vitrine.runner import probes

    names = settings.allowed_hosts
    return probes.serving(settings.metrics_host, port, metrics.switch_on(), is_ready, names=names)


def _log_start(text: str) -> None:
    log.info(text, extra={"action": "started"})
