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
