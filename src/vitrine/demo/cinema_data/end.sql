-- Ends a fill: drops what the steps shared, so that a second fill can follow in the same transaction.

DROP TABLE cinema_genre, cinema_person, cinema_film, cinema_user;
DROP FUNCTION pg_temp.cinema_user_of, pg_temp.cinema_film_of, pg_temp.cinema_moment, pg_temp.cinema_chance,
              pg_temp.cinema_digest;
ANALYZE content.film_work, content.genre, content.person, content.genre_film_work, content.person_film_work,
        ugc.ratings, ugc.likes, ugc.views;
