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
