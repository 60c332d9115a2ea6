"""How the JVM of Elasticsearch is started, and what it reads from its standard input."""

from collections.abc import Mapping
from pathlib import Path

SHUTDOWN = b"\x1b"
"""Elasticsearch stops when it reads this byte, and also at the end of the input: it never outlives its parent."""

_MAIN = "org.elasticsearch.server/org.elasticsearch.bootstrap.Elasticsearch"

# those of Elasticsearch's own launcher (SystemJvmOptions and jvm.options), with a small heap and without GC logs
_FLAGS = (
    "-Xms512m",
    "-Xmx512m",
    "-Xss1m",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:-UsePerfData",
    "-Des.distribution.type=tar",
    "-Des.networkaddress.cache.ttl=60",
    "-Des.networkaddress.cache.negative.ttl=10",
    "-Djava.security.manager=allow",
    "-Djava.awt.headless=true",
    "-Djava.locale.providers=SPI,COMPAT",
    "-Dfile.encoding=UTF-8",
    "-Djna.nosys=true",
    "-Dio.netty.noUnsafe=true",
    "-Dio.netty.noKeySetOptimization=true",
    "-Dio.netty.recycler.maxCapacityPerThread=0",
    "-Dlog4j.shutdownHookEnabled=false",
    "-Dlog4j2.disable.jmx=true",
    "-Dlog4j2.formatMsgNoLookups=true",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
)

_USUAL_FLAGS = ("-XX:+UseG1GC",)
_FAST_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Without the optimizing compiler a start takes half the time of the processor, and less with the simple collector."""

LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] [%node_name] %marker%m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""
"""The configuration of log4j2: warnings and errors go to the standard output."""


def command(java: Path, temporary: Path, locale_provider: Path | None, *, fast: bool) -> list[str]:
    """The command, for the folder of Elasticsearch as the current one."""
    # only classes of Java itself may provide locales under the security manager of Elasticsearch
    classes = [] if locale_provider is None else [f"-Xbootclasspath/a:{locale_provider}"]
    folders = [f"-Djava.io.tmpdir={temporary}", f"-XX:ErrorFile={temporary}/hs_err_pid%p.log"]
    modules = ["--module-path", "lib", "--add-modules=jdk.net", "--add-modules=ALL-MODULE-PATH"]
    flags = [*_FLAGS, *(_FAST_FLAGS if fast else _USUAL_FLAGS)]
    return [str(java), *flags, *folders, *classes, *modules, "-m", _MAIN]


def server_arguments(settings: Mapping[str, str], configuration: Path) -> bytes:
    """What the launcher of Elasticsearch 8.6 sends to the server: the class ServerArgs in its stream format."""
    daemonize, quiet, pid_file = b"\0", b"\0", b"\0"
    keystore_password = _string("")
    entries = b"".join(_string(name) + b"\0" + _string(value) for name, value in settings.items())
    node_settings = _number(len(settings)) + entries
    return daemonize + quiet + pid_file + keystore_password + node_settings + _string(str(configuration))


def _string(text: str) -> bytes:
    """The number of UTF-16 units, then each unit by itself in UTF-8."""
    packed = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(packed[start : start + 2], "big") for start in range(0, len(packed), 2)]
    return _number(len(units)) + b"".join(chr(unit).encode("utf-8", "surrogatepass") for unit in units)


def _number(value: int) -> bytes:
    """Seven bits per byte, the lowest first; the highest bit of a byte: another one follows."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
