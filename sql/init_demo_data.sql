-- The sample cinema: schemas content and ugc with their tables and deterministic rows. PostgreSQL 15+:
--     psql postgresql://user@host/database < sql/init_demo_data.sql
-- Everything happens in one transaction. A second time it adds nothing, and existing rows stay.
-- Written by `make sample-sql` from src/vitrine/demo/cinema_schema.sql and src/vitrine/demo/cinema_data/; change those.
\set ON_ERROR_STOP on
\set QUIET on
\encoding UTF8
BEGIN;
SET LOCAL client_min_messages = warning;

-- The tables of the sample cinema: films in content; ratings, likes and views in ugc.

CREATE SCHEMA IF NOT EXISTS content;
CREATE SCHEMA IF NOT EXISTS ugc;

CREATE TABLE IF NOT EXISTS content.film_work (
    id uuid PRIMARY KEY,
    title text NOT NULL,
    description text,
    creation_date date,
    rating double precision,
    type text NOT NULL,
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS content.genre (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    description text,
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS content.person (
    id uuid PRIMARY KEY,
    full_name text NOT NULL,
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS content.genre_film_work (
    id uuid PRIMARY KEY,
    film_work_id uuid NOT NULL,
    genre_id uuid NOT NULL,
    created timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS content.person_film_work (
    id uuid PRIMARY KEY,
    film_work_id uuid NOT NULL,
    person_id uuid NOT NULL,
    role text NOT NULL CHECK (role IN ('director', 'actor', 'writer')),
    created timestamptz NOT NULL DEFAULT now()
);

-- Another service writes ugc, so no foreign key leads from ugc to content.
CREATE TABLE IF NOT EXISTS ugc.ratings (
    id uuid PRIMARY KEY,
    user_id uuid NOT NULL,
    film_id uuid NOT NULL,
    rating smallint NOT NULL CHECK (rating BETWEEN 1 AND 10),
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS ugc.likes (
    id uuid PRIMARY KEY,
    user_id uuid NOT NULL,
    film_id uuid NOT NULL,
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS ugc.views (
    id uuid PRIMARY KEY,
    user_id uuid NOT NULL,
    film_id uuid NOT NULL,
    seconds_watched integer NOT NULL CHECK (seconds_watched >= 0),
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now()
);

-- Not part of CREATE TABLE, because a first load drops the indexes and foreign keys and creates them again at its end.
CREATE INDEX IF NOT EXISTS film_work_modified_id ON content.film_work (modified, id);
CREATE INDEX IF NOT EXISTS genre_modified_id ON content.genre (modified, id);
CREATE INDEX IF NOT EXISTS person_modified_id ON content.person (modified, id);
CREATE UNIQUE INDEX IF NOT EXISTS genre_film_work_pair ON content.genre_film_work (film_work_id, genre_id);
CREATE INDEX IF NOT EXISTS genre_film_work_genre_id ON content.genre_film_work (genre_id);
CREATE INDEX IF NOT EXISTS genre_film_work_created ON content.genre_film_work (created);
CREATE UNIQUE INDEX IF NOT EXISTS person_film_work_role
    ON content.person_film_work (film_work_id, person_id, role);
CREATE INDEX IF NOT EXISTS person_film_work_person_id ON content.person_film_work (person_id);
CREATE INDEX IF NOT EXISTS person_film_work_created ON content.person_film_work (created);
CREATE INDEX IF NOT EXISTS ratings_modified_id ON ugc.ratings (modified, id);
CREATE INDEX IF NOT EXISTS ratings_user_id ON ugc.ratings (user_id);
CREATE INDEX IF NOT EXISTS ratings_film_id ON ugc.ratings (film_id);
CREATE INDEX IF NOT EXISTS likes_modified_id ON ugc.likes (modified, id);
CREATE INDEX IF NOT EXISTS likes_user_id ON ugc.likes (user_id);
CREATE INDEX IF NOT EXISTS likes_film_id ON ugc.likes (film_id);
CREATE INDEX IF NOT EXISTS views_modified_id ON ugc.views (modified, id);
CREATE INDEX IF NOT EXISTS views_user_id ON ugc.views (user_id);
CREATE INDEX IF NOT EXISTS views_film_id ON ugc.views (film_id);

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_constraint WHERE conname = 'genre_film_work_genre_id_fkey') THEN
        ALTER TABLE content.genre_film_work
            ADD FOREIGN KEY (film_work_id) REFERENCES content.film_work (id) ON DELETE CASCADE,
            ADD FOREIGN KEY (genre_id) REFERENCES content.genre (id) ON DELETE CASCADE;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_constraint WHERE conname = 'person_film_work_person_id_fkey') THEN
        ALTER TABLE content.person_film_work
            ADD FOREIGN KEY (film_work_id) REFERENCES content.film_work (id) ON DELETE CASCADE,
            ADD FOREIGN KEY (person_id) REFERENCES content.person (id) ON DELETE CASCADE;
    END IF;
END
$$;

-- A removed or changed link leaves no row with a newer time behind. The film gets one, so incremental pipelines read it.
CREATE OR REPLACE FUNCTION content.touch_film_of_link() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE content.film_work SET modified = now() WHERE id IN (old.film_work_id, new.film_work_id);
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER genre_film_work_touches_film AFTER UPDATE OR DELETE ON content.genre_film_work
    FOR EACH ROW EXECUTE FUNCTION content.touch_film_of_link();
CREATE OR REPLACE TRIGGER person_film_work_touches_film AFTER UPDATE OR DELETE ON content.person_film_work
    FOR EACH ROW EXECUTE FUNCTION content.touch_film_of_link();

SET LOCAL cinema.seed = 1;
SET LOCAL cinema.ratings = 20000;
SELECT EXISTS (SELECT FROM content.film_work) OR EXISTS (SELECT FROM ugc.ratings) AS grows \gset
SET LOCAL cinema.grows = :'grows';

-- Starts a fill: the functions that all steps share, and the genres.
-- Every value follows from cinema.seed and the number of the row by md5, so equal arguments give equal rows everywhere.

-- The newest row of a new cinema has this time. It is fixed, because two loads would differ otherwise.
SET LOCAL cinema.until = '2026-01-01 00:00:00+00';
-- Sorted rows keep the index of the primary key small and fast to fill.
SET LOCAL work_mem = '256MB';
SET LOCAL maintenance_work_mem = '256MB';

CREATE FUNCTION pg_temp.cinema_digest(kind text, n bigint) RETURNS text LANGUAGE sql STABLE
RETURN md5(kind || ':' || current_setting('cinema.seed') || ':' || n);

-- A number in [0, 1) from the eight characters of the digest after the given one.
CREATE FUNCTION pg_temp.cinema_chance(digest text, after integer) RETURNS double precision LANGUAGE sql IMMUTABLE
RETURN ('x' || substr(digest, after + 1, 8))::bit(32)::bigint / 4294967296.0::double precision;

-- The rows of a new cinema are spread over two years. Three rows share each time, because readers must handle ties.
-- Rows added to an existing cinema have the time of the load: a checkpoint has passed all earlier times, so an
-- incremental pipeline would miss rows with an older time.
CREATE FUNCTION pg_temp.cinema_moment(n bigint) RETURNS timestamptz LANGUAGE sql STABLE
RETURN CASE WHEN current_setting('cinema.grows')::boolean THEN now()
            ELSE current_setting('cinema.until')::timestamptz
                 - interval '1 microsecond' * (n / 3 * 104729000037 % 63072000000000) END;

-- A few films and a few viewers have most of the events. Every two-hundredth event is of a new viewer, and the newest
-- films have no events yet.
CREATE FUNCTION pg_temp.cinema_film_of(digest text, films bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN floor(films * 0.98::double precision * pow(pg_temp.cinema_chance(digest, 8), 2))::bigint;

CREATE FUNCTION pg_temp.cinema_user_of(digest text, users bigint, n bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN floor(users * CASE WHEN n % 200 = 0 THEN 0.9 + 0.1 * pg_temp.cinema_chance(digest, 16)
                          ELSE 0.9 * pow(pg_temp.cinema_chance(digest, 16), 2) END)::bigint;

-- A first load is several times faster when indexes and foreign keys are built at its end, by cinema_schema.sql.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM content.film_work) THEN
        DROP INDEX IF EXISTS
            content.film_work_modified_id, content.person_modified_id,
            content.genre_film_work_pair, content.genre_film_work_genre_id, content.genre_film_work_created,
            content.person_film_work_role, content.person_film_work_person_id, content.person_film_work_created;
        ALTER TABLE content.genre_film_work
            DROP CONSTRAINT IF EXISTS genre_film_work_film_work_id_fkey,
            DROP CONSTRAINT IF EXISTS genre_film_work_genre_id_fkey;
        ALTER TABLE content.person_film_work
            DROP CONSTRAINT IF EXISTS person_film_work_film_work_id_fkey,
            DROP CONSTRAINT IF EXISTS person_film_work_person_id_fkey;
    END IF;
    IF NOT EXISTS (SELECT FROM ugc.ratings) THEN
        DROP INDEX IF EXISTS ugc.ratings_modified_id, ugc.ratings_user_id, ugc.ratings_film_id;
    END IF;
    IF NOT EXISTS (SELECT FROM ugc.likes) THEN
        DROP INDEX IF EXISTS ugc.likes_modified_id, ugc.likes_user_id, ugc.likes_film_id;
    END IF;
    IF NOT EXISTS (SELECT FROM ugc.views) THEN
        DROP INDEX IF EXISTS ugc.views_modified_id, ugc.views_user_id, ugc.views_film_id;
    END IF;
END
$$;

INSERT INTO content.genre (id, name, description, created, modified)
SELECT pg_temp.cinema_digest('genre', n)::uuid, name,
       CASE WHEN n % 5 > 0 THEN 'Films and series filed under ' || name END,
       timestamptz '2020-01-01 00:00:00+00' + interval '1 minute' * n, pg_temp.cinema_moment(n)
  FROM unnest(ARRAY[
           'Sci-Fi', 'Adventure', 'Action', 'Drama', 'Comedy', 'Thriller', 'Romance', 'Fantasy', 'Animation', 'Family',
           'Crime', 'Mystery', 'Horror', 'Documentary', 'Biography', 'History', 'War', 'Western', 'Music', 'Musical',
           'Sport', 'Short', 'News', 'Talk-Show', 'Reality-TV', 'Game-Show'
       ]) WITH ORDINALITY AS genres (name, n)
 WHERE NOT EXISTS (SELECT FROM content.genre);

SET LOCAL cinema.first = 1;
SET LOCAL cinema.last = 1000;

-- Adds the persons with the numbers from cinema.first to cinema.last.

INSERT INTO content.person (id, full_name, created, modified)
SELECT digest::uuid,
       (ARRAY['Ada', 'Amara', 'Anton', 'Björn', 'Carla', 'Chidi', 'Claire', 'Daniel', 'Elena', 'Emil', 'Esther', 'Farah',
              'George', 'Hana', 'Hugo', 'Ines', 'Ivan', 'Jasper', 'Joan', 'Kofi', 'Lena', 'Louis', 'Mara', 'Milo',
              'Nadia', 'Noah', 'Olga', 'Omar', 'Paula', 'Quentin', 'Rosa', 'Samir', 'Søren', 'Tara', 'Tomás', 'Uma',
              'Viktor', 'Wanda', 'Yuki', 'Zoë'])[1 + floor(40 * pg_temp.cinema_chance(digest, 0))::int] || ' ' ||
       CASE WHEN n > 1000 THEN chr(65 + floor(26 * pg_temp.cinema_chance(digest, 8))::int) || '. ' ELSE '' END ||
       (ARRAY['Abara', 'Adler', 'Almeida', 'Arden', 'Beck', 'Bianchi', 'Castell', 'Chen', 'Dubois', 'Eriksson', 'Falk',
              'Ferreira', 'Fischer', 'Gallo', 'Grant', 'Hayashi', 'Holm', 'Ibarra', 'Ivanova', 'Jansen', 'Kaplan',
              'Kowalski', 'Laurent', 'Lindqvist', 'Marlow', 'Mensah', 'Moreau', 'Nakamura', 'Novák', 'O''Hara', 'Okafor',
              'Petrov', 'Quist', 'Reyes', 'Romano', 'Sato', 'Silva', 'Stern', 'Thorne', 'Ueda', 'Valdez', 'Varga',
              'Weiss', 'Winter', 'Xu', 'Yilmaz', 'Young', 'Zeller', 'Ziegler', 'Żak'])
           [1 + floor(50 * pg_temp.cinema_chance(digest, 16))::int],
       timestamptz '2020-01-01 00:00:00+00' + interval '1 minute' * n, pg_temp.cinema_moment(n)
  FROM generate_series(current_setting('cinema.first')::bigint, current_setting('cinema.last')::bigint) AS n,
       LATERAL (SELECT pg_temp.cinema_digest('person', n) AS digest OFFSET 0) AS d
 WHERE NOT EXISTS (SELECT FROM content.person AS known WHERE known.id = digest::uuid)
 ORDER BY 1;

-- Numbers genres and persons in the order of their creation, so that a film is linked to those that exist.

CREATE TEMPORARY TABLE cinema_genre ON COMMIT DROP AS
SELECT row_number() OVER (ORDER BY created, id) - 1 AS n, id FROM content.genre;
CREATE TEMPORARY TABLE cinema_person ON COMMIT DROP AS
SELECT row_number() OVER (ORDER BY created, id) - 1 AS n, id FROM content.person;
ANALYZE cinema_genre, cinema_person;

SET LOCAL cinema.first = 1;
SET LOCAL cinema.last = 1000;

-- Adds the films with the numbers from cinema.first to cinema.last, and links them to genres and persons.

CREATE TEMPORARY TABLE cinema_new_film ON COMMIT DROP AS
SELECT n, pg_temp.cinema_digest('film', n) AS digest
  FROM generate_series(current_setting('cinema.first')::bigint, current_setting('cinema.last')::bigint) AS n
 WHERE NOT EXISTS (SELECT FROM content.film_work AS known WHERE known.id = pg_temp.cinema_digest('film', n)::uuid);
ANALYZE cinema_new_film;

WITH known (title, released) AS (
    VALUES ('Star Wars: Episode IV - A New Hope', date '1977-05-25'),
           ('Star Wars: Episode V - The Empire Strikes Back', '1980-05-21'),
           ('Star Wars: Episode VI - Return of the Jedi', '1983-05-25'),
           ('Star Trek: The Motion Picture', '1979-12-07'),
           ('Star Trek II: The Wrath of Khan', '1982-06-04'),
           ('Star Trek III: The Search for Spock', '1984-06-01'),
           ('Star Trek IV: The Voyage Home', '1986-11-26'),
           ('Star Trek V: The Final Frontier', '1989-06-09'),
           ('Star Trek VI: The Undiscovered Country', '1991-12-06'),
           ('Star Trek: Generations', '1994-11-18'),
           ('Star Trek: First Contact', '1996-11-22'),
           ('Star Trek: Insurrection', '1998-12-11'),
           ('Star Wars: Episode I - The Phantom Menace', '1999-05-19'),
           ('Star Wars: Episode II - Attack of the Clones', '2002-05-16'),
           ('Star Trek: Nemesis', '2002-12-13'),
           ('Star Wars: Episode III - Revenge of the Sith', '2005-05-19'),
           ('Star Wars: The Clone Wars', '2008-08-15'),
           ('Star Trek', '2009-05-08'),
           ('Star Trek Into Darkness', '2013-05-16'),
           ('Star Wars: Episode VII - The Force Awakens', '2015-12-18'),
           ('Star Trek Beyond', '2016-07-22'),
           ('Rogue One: A Star Wars Story', '2016-12-16'),
           ('Star Wars: Episode VIII - The Last Jedi', '2017-12-15'),
           ('Solo: A Star Wars Story', '2018-05-25'),
           ('Star Wars: Episode IX - The Rise of Skywalker', '2019-12-20')
), russian (title, released, description) AS (
    VALUES ('Человек-амфибия', date '1962-01-03', 'Юноша с жабрами акулы живёт в море и влюбляется в дочь ловца жемчуга.'),
           ('Солярис', '1972-03-20', 'Психолог прилетает на станцию у далёкой планеты, океан которой читает мысли людей.'),
           ('Сталкер', '1979-05-25', 'Проводник ведёт писателя и учёного через Зону к комнате, где исполняются желания.'),
           ('Тайна третьей планеты', '1981-10-02', 'Алиса с отцом ищет редких животных и спасает двух капитанов.'),
           ('Гостья из будущего', '1985-03-25', 'Школьник попадает в двадцать первый век и возвращается с прибором.')
), numbered AS (
    SELECT row_number() OVER (ORDER BY released) AS n, title, released, NULL AS description FROM known
     UNION ALL
    SELECT 25 + row_number() OVER (ORDER BY released), title, released, description FROM russian
), worded AS (
    SELECT n, digest,
           (ARRAY['Amber', 'Ancient', 'Bitter', 'Blue', 'Broken', 'Burning', 'Crimson', 'Distant', 'Electric', 'Endless',
                  'Fallen', 'Forgotten', 'Frozen', 'Gentle', 'Glass', 'Golden', 'Hidden', 'Hollow', 'Iron', 'Last',
                  'Little', 'Lonely', 'Lost', 'Midnight', 'Northern', 'Paper', 'Quiet', 'Restless', 'Scarlet', 'Second',
                  'Secret', 'Silent', 'Silver', 'Slow', 'Stolen', 'Strange', 'Velvet', 'Wandering', 'White', 'Wild'])
               [1 + floor(40 * pg_temp.cinema_chance(digest, 0))::int] AS quality,
           (ARRAY['Archive', 'Bridge', 'Café', 'Castle', 'City', 'Coast', 'Colony', 'Crossing', 'Dance', 'Detective',
                  'Dream', 'Empire', 'Engine', 'Forest', 'Garden', 'Ghost', 'Harbour', 'Horizon', 'House', 'Island',
                  'Journey', 'King', 'Letter', 'Lighthouse', 'Machine', 'Memory', 'Mirror', 'Moon', 'Mountain', 'Orchard',
                  'Orbit', 'Piano', 'Planet', 'Promise', 'Queen', 'Railway', 'River', 'Season', 'Shadow', 'Signal',
                  'Stranger', 'Summer', 'Theatre', 'Tide', 'Tower', 'Train', 'Voyage', 'Winter', 'Witness', 'Zürich'])
               [1 + floor(50 * pg_temp.cinema_chance(digest, 8))::int] AS thing,
           (ARRAY['Athens', 'Berlin', 'Casablanca', 'Dakar', 'Europa', 'Glass', 'Havana', 'Istanbul', 'Jaipur', 'Kyoto',
                  'Lisbon', 'Mars', 'Mir', 'Naples', 'Oslo', 'Paris', 'Rain', 'Salt', 'Saturn', 'São Paulo'])
               [1 + floor(20 * pg_temp.cinema_chance(digest, 16))::int] AS place
      FROM cinema_new_film
)
INSERT INTO content.film_work (id, title, description, creation_date, rating, type, created, modified)
SELECT digest::uuid,
       coalesce(k.title, CASE n % 4 WHEN 0 THEN 'The ' || quality || ' ' || thing
                                    WHEN 1 THEN quality || ' ' || thing
                                    WHEN 2 THEN 'The ' || thing || ' of ' || place
                                    ELSE quality || ' ' || place END
                         || CASE n % 23 WHEN 0 THEN ' II' WHEN 1 THEN ': The Return' ELSE '' END),
       CASE WHEN k.description IS NOT NULL THEN k.description
            WHEN n % 7 > 0 THEN 'A ' || lower(quality) || ' story of a ' || lower(thing) || ' and what became of it in '
                                || place || '.' END,
       CASE WHEN k.released IS NOT NULL THEN k.released
            WHEN n % 11 > 0 THEN date '1960-01-01' + floor(23740 * pg_temp.cinema_chance(digest, 24))::int END,
       CASE WHEN n % 13 > 0 THEN floor(10 + 90 * pg_temp.cinema_chance(digest, 20)) / 10 END,
       CASE WHEN k.title IS NULL AND n % 5 = 0 THEN 'tv_show' ELSE 'movie' END,
       timestamptz '2020-01-01 00:00:00+00' + interval '1 minute' * n, pg_temp.cinema_moment(n)
  FROM worded LEFT JOIN numbered AS k USING (n)
 ORDER BY 1;

-- One to three genres. The films with known titles are science fiction, adventure and action.
INSERT INTO content.genre_film_work (id, film_work_id, genre_id, created)
SELECT pg_temp.cinema_digest('genre_film', film.n * 10 + place)::uuid, film.digest::uuid, genre.id, pg_temp.cinema_moment(film.n)
  FROM cinema_new_film AS film
 CROSS JOIN generate_series(0, floor(3 * pg_temp.cinema_chance(film.digest, 12))::int) AS place
  JOIN cinema_genre AS genre
    ON genre.n = CASE WHEN film.n <= 30 THEN place
                      ELSE (floor((SELECT count(*) FROM cinema_genre) * pg_temp.cinema_chance(film.digest, 4))::int + 5 * place)
                           % (SELECT count(*) FROM cinema_genre) END
 ORDER BY 1;

-- One or two directors, one writer, two to six actors. With a step of seven, no person of at least sixty comes twice.
INSERT INTO content.person_film_work (id, film_work_id, person_id, role, created)
SELECT pg_temp.cinema_digest('person_film', film.n * 10 + place)::uuid, film.digest::uuid, person.id,
       CASE WHEN place < 2 THEN 'director' WHEN place = 2 THEN 'writer' ELSE 'actor' END, pg_temp.cinema_moment(film.n)
  FROM cinema_new_film AS film
 CROSS JOIN generate_series(CASE WHEN film.n % 4 = 0 THEN 0 ELSE 1 END,
                            4 + floor(5 * pg_temp.cinema_chance(film.digest, 12))::int) AS place
  JOIN cinema_person AS person
    ON person.n = (floor((SELECT count(*) FROM cinema_person) * pg_temp.cinema_chance(film.digest, 6))::int + 7 * place)
                  % (SELECT count(*) FROM cinema_person)
 ORDER BY 1;

DROP TABLE cinema_new_film;

-- Numbers the films in the order of their creation, and the viewers: one for every forty ratings.

CREATE TEMPORARY TABLE cinema_film ON COMMIT DROP AS
SELECT row_number() OVER (ORDER BY created, id) - 1 AS n, id FROM content.film_work;
CREATE TEMPORARY TABLE cinema_user ON COMMIT DROP AS
SELECT n, pg_temp.cinema_digest('user', n)::uuid AS id
  FROM generate_series(0, greatest(20, current_setting('cinema.ratings')::bigint / 40) - 1) AS n;
ANALYZE cinema_film, cinema_user;

SET LOCAL cinema.first = 1;
SET LOCAL cinema.last = 20000;

-- Adds the ratings with the numbers from cinema.first to cinema.last.

INSERT INTO ugc.ratings (id, user_id, film_id, rating, created, modified)
SELECT digest::uuid, viewer.id, film.id,
       least(10, greatest(1, 7 + film.n * 7 % 5 + CASE viewer.n % 7 WHEN 0 THEN -3 WHEN 1 THEN 1 ELSE 0 END
                             - floor(5 * pg_temp.cinema_chance(digest, 24))::int))::smallint,
       moment - interval '1 hour' * (event.n % 5), moment
  FROM (SELECT n, pg_temp.cinema_digest('rating', n) AS digest, pg_temp.cinema_moment(n) AS moment
          FROM generate_series(current_setting('cinema.first')::bigint, current_setting('cinema.last')::bigint) AS n
        OFFSET 0) AS event
  JOIN cinema_film AS film ON film.n = pg_temp.cinema_film_of(digest, (SELECT count(*) FROM cinema_film))
  JOIN cinema_user AS viewer ON viewer.n = pg_temp.cinema_user_of(digest, (SELECT count(*) FROM cinema_user), event.n)
 WHERE NOT EXISTS (SELECT FROM ugc.ratings AS known WHERE known.id = digest::uuid)
 ORDER BY 1;

SET LOCAL cinema.first = 1;
SET LOCAL cinema.last = 10000;

-- Adds the likes with the numbers from cinema.first to cinema.last.

INSERT INTO ugc.likes (id, user_id, film_id, created, modified)
SELECT digest::uuid, viewer.id, film.id, moment, moment
  FROM (SELECT n, pg_temp.cinema_digest('like', n) AS digest, pg_temp.cinema_moment(n) AS moment
          FROM generate_series(current_setting('cinema.first')::bigint, current_setting('cinema.last')::bigint) AS n
        OFFSET 0) AS event
  JOIN cinema_film AS film ON film.n = pg_temp.cinema_film_of(digest, (SELECT count(*) FROM cinema_film))
  JOIN cinema_user AS viewer ON viewer.n = pg_temp.cinema_user_of(digest, (SELECT count(*) FROM cinema_user), event.n)
 WHERE NOT EXISTS (SELECT FROM ugc.likes AS known WHERE known.id = digest::uuid)
 ORDER BY 1;

SET LOCAL cinema.first = 1;
SET LOCAL cinema.last = 20000;

-- Adds the views with the numbers from cinema.first to cinema.last.

INSERT INTO ugc.views (id, user_id, film_id, seconds_watched, created, modified)
SELECT digest::uuid, viewer.id, film.id, floor(7200 * pg_temp.cinema_chance(digest, 24))::int,
       moment - interval '2 hours', moment
  FROM (SELECT n, pg_temp.cinema_digest('view', n) AS digest, pg_temp.cinema_moment(n) AS moment
          FROM generate_series(current_setting('cinema.first')::bigint, current_setting('cinema.last')::bigint) AS n
        OFFSET 0) AS event
  JOIN cinema_film AS film ON film.n = pg_temp.cinema_film_of(digest, (SELECT count(*) FROM cinema_film))
  JOIN cinema_user AS viewer ON viewer.n = pg_temp.cinema_user_of(digest, (SELECT count(*) FROM cinema_user), event.n)
 WHERE NOT EXISTS (SELECT FROM ugc.views AS known WHERE known.id = digest::uuid)
 ORDER BY 1;

-- Ends a fill: drops what the steps shared, so that a second fill can follow in the same transaction.

DROP TABLE cinema_genre, cinema_person, cinema_film, cinema_user;
DROP FUNCTION pg_temp.cinema_user_of, pg_temp.cinema_film_of, pg_temp.cinema_moment, pg_temp.cinema_chance,
              pg_temp.cinema_digest;
ANALYZE content.film_work, content.genre, content.person, content.genre_film_work, content.person_film_work,
        ugc.ratings, ugc.likes, ugc.views;

-- Indexes and foreign keys, which a first load has dropped

-- The tables of the sample cinema: films in content; ratings, likes and views in ugc.

CREATE SCHEMA IF NOT EXISTS content;
CREATE SCHEMA IF NOT EXISTS ugc;

CREATE TABLE IF NOT EXISTS content.film_work (
    id uuid PRIMARY KEY,
    title text NOT NULL,
    description text,
    creation_date date,
    rating double precision,
    type text NOT NULL,
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS content.genre (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    description text,
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS content.person (
    id uuid PRIMARY KEY,
    full_name text NOT NULL,
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS content.genre_film_work (
    id uuid PRIMARY KEY,
    film_work_id uuid NOT NULL,
    genre_id uuid NOT NULL,
    created timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS content.person_film_work (
    id uuid PRIMARY KEY,
    film_work_id uuid NOT NULL,
    person_id uuid NOT NULL,
    role text NOT NULL CHECK (role IN ('director', 'actor', 'writer')),
    created timestamptz NOT NULL DEFAULT now()
);

-- Another service writes ugc, so no foreign key leads from ugc to content.
CREATE TABLE IF NOT EXISTS ugc.ratings (
    id uuid PRIMARY KEY,
    user_id uuid NOT NULL,
    film_id uuid NOT NULL,
    rating smallint NOT NULL CHECK (rating BETWEEN 1 AND 10),
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS ugc.likes (
    id uuid PRIMARY KEY,
    user_id uuid NOT NULL,
    film_id uuid NOT NULL,
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS ugc.views (
    id uuid PRIMARY KEY,
    user_id uuid NOT NULL,
    film_id uuid NOT NULL,
    seconds_watched integer NOT NULL CHECK (seconds_watched >= 0),
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now()
);

-- Not part of CREATE TABLE, because a first load drops the indexes and foreign keys and creates them again at its end.
CREATE INDEX IF NOT EXISTS film_work_modified_id ON content.film_work (modified, id);
CREATE INDEX IF NOT EXISTS genre_modified_id ON content.genre (modified, id);
CREATE INDEX IF NOT EXISTS person_modified_id ON content.person (modified, id);
CREATE UNIQUE INDEX IF NOT EXISTS genre_film_work_pair ON content.genre_film_work (film_work_id, genre_id);
CREATE INDEX IF NOT EXISTS genre_film_work_genre_id ON content.genre_film_work (genre_id);
CREATE INDEX IF NOT EXISTS genre_film_work_created ON content.genre_film_work (created);
CREATE UNIQUE INDEX IF NOT EXISTS person_film_work_role
    ON content.person_film_work (film_work_id, person_id, role);
CREATE INDEX IF NOT EXISTS person_film_work_person_id ON content.person_film_work (person_id);
CREATE INDEX IF NOT EXISTS person_film_work_created ON content.person_film_work (created);
CREATE INDEX IF NOT EXISTS ratings_modified_id ON ugc.ratings (modified, id);
CREATE INDEX IF NOT EXISTS ratings_user_id ON ugc.ratings (user_id);
CREATE INDEX IF NOT EXISTS ratings_film_id ON ugc.ratings (film_id);
CREATE INDEX IF NOT EXISTS likes_modified_id ON ugc.likes (modified, id);
CREATE INDEX IF NOT EXISTS likes_user_id ON ugc.likes (user_id);
CREATE INDEX IF NOT EXISTS likes_film_id ON ugc.likes (film_id);
CREATE INDEX IF NOT EXISTS views_modified_id ON ugc.views (modified, id);
CREATE INDEX IF NOT EXISTS views_user_id ON ugc.views (user_id);
CREATE INDEX IF NOT EXISTS views_film_id ON ugc.views (film_id);

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_constraint WHERE conname = 'genre_film_work_genre_id_fkey') THEN
        ALTER TABLE content.genre_film_work
            ADD FOREIGN KEY (film_work_id) REFERENCES content.film_work (id) ON DELETE CASCADE,
            ADD FOREIGN KEY (genre_id) REFERENCES content.genre (id) ON DELETE CASCADE;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_constraint WHERE conname = 'person_film_work_person_id_fkey') THEN
        ALTER TABLE content.person_film_work
            ADD FOREIGN KEY (film_work_id) REFERENCES content.film_work (id) ON DELETE CASCADE,
            ADD FOREIGN KEY (person_id) REFERENCES content.person (id) ON DELETE CASCADE;
    END IF;
END
$$;

-- A removed or changed link leaves no row with a newer time behind. The film gets one, so incremental pipelines read it.
CREATE OR REPLACE FUNCTION content.touch_film_of_link() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE content.film_work SET modified = now() WHERE id IN (old.film_work_id, new.film_work_id);
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER genre_film_work_touches_film AFTER UPDATE OR DELETE ON content.genre_film_work
    FOR EACH ROW EXECUTE FUNCTION content.touch_film_of_link();
CREATE OR REPLACE TRIGGER person_film_work_touches_film AFTER UPDATE OR DELETE ON content.person_film_work
    FOR EACH ROW EXECUTE FUNCTION content.touch_film_of_link();

COMMIT;

SELECT (SELECT count(*) FROM content.film_work) AS films, (SELECT count(*) FROM content.person) AS persons,
       (SELECT count(*) FROM ugc.ratings) AS ratings, (SELECT count(*) FROM ugc.likes) AS likes,
       (SELECT count(*) FROM ugc.views) AS views;
