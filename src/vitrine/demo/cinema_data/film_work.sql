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
