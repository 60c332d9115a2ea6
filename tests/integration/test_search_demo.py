"""The search indexes of the demo: what they find, and how they follow changes at the source."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, LiteralString

import pytest

from tests.helpers.running import create, succeed
from tests.helpers.search_case import Search
from vitrine.compare import reconcile
from vitrine.definition.pipeline import Pipeline
from vitrine.demo import search
from vitrine.postgres import Connection
from vitrine.runner.run import Executed
from vitrine.settings import Settings

ROLES = ("director", "actor", "writer")
ARRAYS = ("genres", "directors", "actors", "writers")

# One film, genre and person that every change below concerns; the film has at least two genres.
SAMPLE: LiteralString = """
    SELECT f.id AS film, f.title, g.id AS genre, g.name AS genre_name, p.id AS person, p.full_name
      FROM content.film_work AS f
      JOIN content.genre_film_work AS gf ON gf.film_work_id = f.id
      JOIN content.genre AS g ON g.id = gf.genre_id
      JOIN content.person_film_work AS pf ON pf.film_work_id = f.id AND pf.role = 'actor'
      JOIN content.person AS p ON p.id = pf.person_id
     WHERE (SELECT count(*) FROM content.genre_film_work AS other WHERE other.film_work_id = f.id) > 1
       AND f.id IN (SELECT film_id FROM ugc.ratings)
     ORDER BY f.title, g.name, p.full_name
     LIMIT 1
"""
CHANGES: Mapping[str, LiteralString] = {
    "rename a film": "UPDATE content.film_work SET title = 'Renamed', modified = now() WHERE id = %(film)s",
    "rename a genre": "UPDATE content.genre SET name = 'Renamed', modified = now() WHERE id = %(genre)s",
    "rename a person": "UPDATE content.person SET full_name = 'Re Named', modified = now() WHERE id = %(person)s",
    "delete a genre": "DELETE FROM content.genre WHERE id = %(genre)s",
    "delete a person": "DELETE FROM content.person WHERE id = %(person)s",
    "remove a genre of a film": (
        "DELETE FROM content.genre_film_work WHERE film_work_id = %(film)s AND genre_id = %(genre)s"
    ),
    "remove a person of a film": (
        "DELETE FROM content.person_film_work WHERE film_work_id = %(film)s AND person_id = %(person)s"
    ),
    "replace a genre of a film": """
        UPDATE content.genre_film_work
           SET genre_id = (SELECT id FROM content.genre
                            WHERE id NOT IN (SELECT genre_id FROM content.genre_film_work WHERE film_work_id = %(film)s)
                            ORDER BY name LIMIT 1)
         WHERE film_work_id = %(film)s AND genre_id = %(genre)s
    """,
    "add a genre to a film": """
        INSERT INTO content.genre_film_work (id, film_work_id, genre_id)
        SELECT gen_random_uuid(), %(film)s, id FROM content.genre
         WHERE id NOT IN (SELECT genre_id FROM content.genre_film_work WHERE film_work_id = %(film)s)
         ORDER BY name LIMIT 1
    """,
    "add an actor to a film": """
        INSERT INTO content.person_film_work (id, film_work_id, person_id, role)
        SELECT gen_random_uuid(), %(film)s, id, 'actor' FROM content.person
         WHERE id NOT IN (SELECT person_id FROM content.person_film_work WHERE film_work_id = %(film)s)
         ORDER BY full_name LIMIT 1
    """,
    "turn an actor into a director": (
        "UPDATE content.person_film_work SET role = 'director'"
        " WHERE film_work_id = %(film)s AND person_id = %(person)s AND role = 'actor'"
    ),
}
DELETE_FILM: LiteralString = "DELETE FROM content.film_work WHERE id = %(film)s"

NAMES: LiteralString = """
    SELECT f.id::text AS film, f.title,
           ARRAY(SELECT g.name FROM content.genre AS g JOIN content.genre_film_work AS gf ON gf.genre_id = g.id
                  WHERE gf.film_work_id = f.id ORDER BY g.name) AS genres,
           ARRAY(SELECT p.full_name FROM content.person AS p JOIN content.person_film_work AS pf ON pf.person_id = p.id
                  WHERE pf.film_work_id = f.id AND pf.role = 'director' ORDER BY p.full_name) AS directors,
           ARRAY(SELECT p.full_name FROM content.person AS p JOIN content.person_film_work AS pf ON pf.person_id = p.id
                  WHERE pf.film_work_id = f.id AND pf.role = 'actor' ORDER BY p.full_name) AS actors,
           ARRAY(SELECT p.full_name FROM content.person AS p JOIN content.person_film_work AS pf ON pf.person_id = p.id
                  WHERE pf.film_work_id = f.id AND pf.role = 'writer' ORDER BY p.full_name) AS writers
      FROM content.film_work AS f
"""


@dataclass(frozen=True)
class Indexes:
    """The three pipelines, under names of one test."""

    connection: Connection
    settings: Settings
    search: Search
    prefix: str
    pipelines: Mapping[str, Pipeline]

    def run(self, name: str) -> Executed:
        return succeed(self.connection, self.settings, self.pipelines[name])

    def run_all(self) -> None:
        for name in self.pipelines:
            self.run(name)

    def index(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def documents(self, name: str) -> dict[str, dict[str, Any]]:
        return self.search.documents(self.index(name))

    def titles(self, request: Mapping[str, Any], name: str = "movies") -> list[str]:
        """Titles of the films that are found, in alphabetical order."""
        self.search.ask("POST", f"{self.index(name)}/_refresh")
        found = self.search.ask("POST", f"{self.index(name)}/_search", {"size": 1000, **request})
        return sorted(hit["_source"]["title"] for hit in found["hits"]["hits"])

    def equal(self, name: str) -> bool:
        return reconcile.compare(self.pipelines[name].definition, self.settings).equal


@pytest.fixture
def indexes(connection: Connection, settings: Settings, elasticsearch_url: str, index_name: str) -> Indexes:
    changed = {"connectors": {"elasticsearch": {"url": elasticsearch_url}}, "lease_ttl": timedelta(seconds=30)}
    own = settings.model_copy(update=changed)
    pipelines: dict[str, Pipeline] = {}
    for document in search.documents():
        name = str(document.fields["target_table"]).removeprefix("es:")
        fields = {field: value for field, value in document.fields.items() if field != "id"}
        pipelines[name] = create(connection, own, **{**fields, "target_table": f"es:{index_name}-{name}"})
    return Indexes(connection, own, Search(elasticsearch_url), index_name, pipelines)


def films_of(connection: Connection) -> dict[str, dict[str, Any]]:
    """What the catalogue must contain, by the id of the film."""
    # sorted as in Python: the order of the database depends on its collation
    return {
        row["film"]: {"title": row["title"], **{name: sorted(row[name]) for name in ARRAYS}}
        for row in connection.execute(NAMES).fetchall()
    }


def names_in(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same from a document of the catalogue."""
    persons = {f"{role}s": sorted(one["full_name"] for one in document[f"{role}s"]) for role in ROLES}
    return {"title": document["title"], "genres": sorted(one["name"] for one in document["genres"]), **persons}


def catalogue(indexes: Indexes) -> dict[str, dict[str, Any]]:
    return {document["film_id"]: names_in(document) for document in indexes.documents("movies").values()}


def test_the_catalogue_finds_films_by_actor_genre_and_word_forms_of_both_languages(indexes: Indexes) -> None:
    indexes.run("movies")
    films = films_of(indexes.connection)
    sample = indexes.connection.execute(SAMPLE).fetchall()[0]
    actor, genre = sample["full_name"], sample["genre_name"]

    played = sorted(film["title"] for film in films.values() if actor in film["actors"])
    assert sample["title"] in played
    assert indexes.titles(search.by_actor(actor.lower())) == played
    directed = {"query": {"nested": {"path": "directors", "query": {"term": {"directors.full_name.keyword": actor}}}}}
    assert indexes.titles(directed) == sorted(film["title"] for film in films.values() if actor in film["directors"])
    tagged = {"query": {"nested": {"path": "genres", "query": {"term": {"genres.name": genre}}}}}
    assert indexes.titles(tagged) == sorted(film["title"] for film in films.values() if genre in film["genres"])

    assert indexes.titles(search.by_words("планета")) == ["Солярис", "Тайна третьей планеты"]
    assert indexes.titles(search.by_words("далекий")) == ["Солярис"]  # ё in the text, е in the search
    assert indexes.titles(search.by_words("striking empires"))[:1] == ["Star Wars: Episode V - The Empire Strikes Back"]


def test_names_of_two_actors_of_one_film_do_not_find_it(indexes: Indexes) -> None:
    """Nested objects keep each actor apart; an array of names would not."""
    indexes.run("movies")
    films = films_of(indexes.connection)
    actors = {actor for film in films.values() for actor in film["actors"]}
    first, second = next(
        (one, other)
        for film in films.values()
        for one in film["actors"]
        for other in film["actors"]
        if f"{one.split(' ')[0]} {other.split(' ')[-1]}" not in actors
    )
    assert indexes.titles(search.by_actor(f"{first.split(' ')[0]} {second.split(' ')[-1]}")) == []


def test_the_other_two_indexes_hold_the_films_and_their_ratings(indexes: Indexes) -> None:
    indexes.run_all()
    films = indexes.connection.execute("SELECT count(*) AS number FROM content.film_work").fetchall()[0]["number"]
    assert len(indexes.documents("film_dim")) == films
    best = indexes.search.ask(
        "POST",
        f"{indexes.index('film_rating_agg')}/_search",
        {
            "size": 1,
            "sort": [{"avg_rating": "desc"}, {"film_id": "asc"}],
            "query": {"range": {"rating_count": {"gte": 5}}},
        },
    )["hits"]["hits"][0]["_source"]
    expected = indexes.connection.execute(
        """
        SELECT film_id::text, round(avg(rating), 2)::text AS avg_rating, count(*) AS rating_count
          FROM ugc.ratings GROUP BY film_id HAVING count(*) >= 5 ORDER BY avg(rating) DESC, film_id LIMIT 1
        """
    ).fetchall()[0]
    numbers = {"rating_count": best["rating_count"], "avg_rating": f"{float(best['avg_rating']):.2f}"}
    assert {"film_id": best["film_id"], **numbers} == expected
    assert indexes.titles(search.by_actor(best["actors"][0]["full_name"]), "film_rating_agg").count(best["title"]) == 1


def test_a_second_run_duplicates_nothing_and_every_index_equals_its_source(indexes: Indexes) -> None:
    indexes.run_all()
    first = {name: indexes.documents(name) for name in indexes.pipelines}
    indexes.run_all()
    for name, documents in first.items():
        assert documents
        assert indexes.documents(name) == documents
        assert indexes.equal(name)


@pytest.mark.parametrize("verb", ["rename", "delete", "remove", "replace", "add", "turn"])
def test_the_catalogue_follows_renamed_deleted_and_tagged_films_genres_and_persons(indexes: Indexes, verb: str) -> None:
    indexes.run("movies")
    indexes.run("film_dim")
    for change in (*CHANGES, "delete a film"):
        if change.startswith(verb):
            before = films_of(indexes.connection)
            sample = indexes.connection.execute(SAMPLE).fetchall()[0]
            indexes.connection.execute(CHANGES.get(change, DELETE_FILM), sample)
            assert films_of(indexes.connection) != before
    indexes.run("movies")
    indexes.run("film_dim")
    assert catalogue(indexes) == films_of(indexes.connection)
    assert indexes.equal("movies")
    assert indexes.equal("film_dim")


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_a_child_table_refreshes_the_documents_of_its_films_only(indexes: Indexes, change: str) -> None:
    name = "film_rating_agg"
    indexes.run(name)
    total = len(indexes.documents(name))
    sample = indexes.connection.execute(SAMPLE).fetchall()[0]
    indexes.connection.execute(CHANGES[change], sample)
    changed = indexes.run(name)
    assert indexes.equal(name)
    assert 0 < changed.counts.read < total
    films = films_of(indexes.connection)
    for document in indexes.documents(name).values():
        film = films[document["film_id"]]
        assert document["title"] == film["title"]
        assert sorted(one["name"] for one in document["genres"]) == film["genres"]
        assert sorted(one["full_name"] for one in document["actors"]) == film["actors"]


def test_a_deleted_film_stays_in_an_incremental_index_and_reconcile_reports_it(indexes: Indexes) -> None:
    name = "film_rating_agg"
    indexes.run(name)
    before = indexes.documents(name)
    sample = indexes.connection.execute(SAMPLE).fetchall()[0]
    indexes.connection.execute(DELETE_FILM, sample)
    indexes.run(name)
    assert indexes.documents(name) == before
    compared = reconcile.compare(indexes.pipelines[name].definition, indexes.settings)
    assert f"rows {len(before) - 1} ≠ {len(before)}" in compared.sentence()
