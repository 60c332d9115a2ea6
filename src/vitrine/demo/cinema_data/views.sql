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
