"""A journal of every status change, written by a trigger in the database."""

from vitrine.core.status import NEXT, Event, Status, next_status
from vitrine.postgres import Connection

LEGAL = frozenset(
    [(old, new) for (old, _), new in NEXT.items() if old is not new]
    + [(Status.RUNNING, next_status(Status.RUNNING, Event.FINISH, rerun=True))]
)

_TRIGGER = """
    CREATE TABLE public.status_journal (
        id bigint GENERATED ALWAYS AS IDENTITY, name text, old text, new text, token bigint, txid xid8
    );
    CREATE FUNCTION public.note_status() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.status_journal (name, old, new, token, txid)
        VALUES (NEW.name, OLD.status, NEW.status, coalesce(NEW.lease_token, OLD.lease_token), pg_current_xact_id());
        RETURN NULL;
    END $$;
    CREATE TRIGGER note_status AFTER UPDATE ON etl.etl_pipelines
        FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION public.note_status();
"""


def start(connection: Connection) -> None:
    """Start the journal in this database."""
    connection.execute(_TRIGGER)


def moves(connection: Connection, name: str | None = None) -> list[tuple[Status, Status]]:
    """Status changes of a pipeline, or of all pipelines, in order."""
    rows = connection.execute(
        "SELECT old, new FROM public.status_journal WHERE name = coalesce(%s, name) ORDER BY id", [name]
    )
    return [(Status(row["old"]), Status(row["new"])) for row in rows]


def assert_legal(connection: Connection) -> None:
    assert set(moves(connection)) <= LEGAL
