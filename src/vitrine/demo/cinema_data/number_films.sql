-- Numbers the films in the order of their creation, and the viewers: one for every forty ratings.

CREATE TEMPORARY TABLE cinema_film ON COMMIT DROP AS
SELECT row_number() OVER (ORDER BY created, id) - 1 AS n, id FROM content.film_work;
CREATE TEMPORARY TABLE cinema_user ON COMMIT DROP AS
SELECT n, pg_temp.cinema_digest('user', n)::uuid AS id
  FROM generate_series(0, greatest(20, current_setting('cinema.ratings')::bigint / 40) - 1) AS n;
ANALYZE cinema_film, cinema_user;
