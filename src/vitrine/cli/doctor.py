"""The command that examines an installation: doctor."""

import sys
from typing import TYPE_CHECKING

from vitrine.cli import building, exit_codes, output
from vitrine.cli.arguments import AsJson

if TYPE_CHECKING:
    from vitrine.service.bodies.doctor import DoctorReport


def doctor(as_json: AsJson = False) -> None:
    """Examine the installation, and say how to mend it.

    Settings, database, store, accounts, clock, sources, Elasticsearch, runners and webhook. Every line is ok, a warning
    or an error, with how to mend it. Exit code 0 without an error, otherwise 1. With --api, the API and its token are
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
        from vitrine.cli.backends import remote_doctor

        return remote_doctor.examine(building.load_settings())
    from vitrine.service import doctor as examining

    return examining.examine(building.service_settings)


def _show(report: "DoctorReport") -> None:
    from textwrap import wrap

    from vitrine.tables import green, red, yellow

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
