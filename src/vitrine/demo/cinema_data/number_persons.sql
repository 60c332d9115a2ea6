-- Numbers genres and persons in the order of their creation, so that a film is linked to those that exist.

CREATE TEMPORARY TABLE cinema_genre ON COMMIT DROP AS
SELECT row_number() OVER (ORDER BY created, id) - 1 AS n, id FROM content.genre;
CREATE TEMPORARY TABLE cinema_person ON COMMIT DROP AS
SELECT row_number() OVER (ORDER BY created, id) - 1 AS n, id FROM content.person;
ANALYZE cinema_genre, cinema_person;
