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
