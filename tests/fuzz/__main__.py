"""schemathesis against the API on an embedded PostgreSQL. `make fuzz SECONDS=600 SEED=1`."""

import argparse
import sys

from tests.fuzz import running
from tests.helpers.folders import open_folder
from tests.helpers.processes import free_port
from vitrine.demo import cinema
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import connect
from vitrine.store.migrate import migrate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    with (
        open_folder("vitrine-fuzz-") as folder,
        EmbeddedPostgres(folder / "postgres", port=free_port(), fast=True) as server,
    ):
        server.ensure_database("vitrine")
        url = server.tcp_url("vitrine")
        migrate(url)
        with connect(url, name="fuzz") as connection:
            cinema.create_schema(connection)
            cinema.fill(connection, films=60, ratings=900)
        logs = folder / "logs"
        logs.mkdir()
        with running.served(url, logs) as address:
            reports = running.fuzz(address, folder, seconds=options.seconds, seed=options.seed)
    sys.stdout.write("\n".join(reports) or "nothing was found\n")
    return 1 if reports else 0


if __name__ == "__main__":
    sys.exit(main())
