"""Queries as analysts write them over the sample cinema: each must be accepted and executed."""

HONEST = [
    # columns, filters, order
    "SELECT id, title FROM content.film_work",
    "SELECT * FROM content.genre ORDER BY name",
    "SELECT id, title, rating FROM content.film_work WHERE rating BETWEEN 5 AND 8 AND type = 'movie'",
    "SELECT id FROM content.film_work WHERE title ILIKE '%star%' OR title LIKE '50!%%' ESCAPE '!'",
    "SELECT id FROM content.film_work WHERE type IN ('movie', 'tv_show') AND rating IS NOT NULL",
    "SELECT id FROM content.film_work WHERE title ~* '^the |wars$' AND title !~ '[0-9]{4}'",
    'SELECT id, title COLLATE "C" AS t FROM content.film_work ORDER BY t DESC NULLS LAST LIMIT 10 OFFSET 3',
    "SELECT DISTINCT type FROM content.film_work",
    "SELECT DISTINCT ON (type) type, title FROM content.film_work ORDER BY type, rating DESC NULLS LAST, id",
    "TABLE content.genre",
    "SELECT v.id, v.label FROM (VALUES (1, 'low'), (2, 'high')) AS v (id, label)",
    "SELECT CASE WHEN rating >= 8 THEN 'top' WHEN rating >= 5 THEN 'good' ELSE 'rest' END AS band FROM"
    " content.film_work",
    "SELECT coalesce(description, ''), nullif(title, ''), greatest(rating, 1), least(rating, 9) FROM content.film_work",
    "SELECT id, rating IS DISTINCT FROM 5, (rating > 5) IS TRUE, NOT (rating > 5) FROM content.film_work",
    # joins
    "SELECT f.id, g.name FROM content.film_work f JOIN content.genre_film_work gf ON gf.film_work_id = f.id"
    " JOIN content.genre g ON g.id = gf.genre_id",
    "SELECT f.id, p.full_name FROM content.film_work f LEFT JOIN content.person_film_work pf ON pf.film_work_id = f.id"
    " AND pf.role = 'director' LEFT JOIN content.person p ON p.id = pf.person_id",
    "SELECT a.id, b.id AS other FROM content.genre a FULL JOIN content.genre b ON a.name = b.description",
    "SELECT a.name, b.name AS other FROM content.genre a CROSS JOIN content.genre b WHERE a.id < b.id",
    "SELECT g.id, gf.film_work_id FROM content.genre g JOIN content.genre_film_work gf ON gf.genre_id = g.id"
    " JOIN content.film_work f ON f.id = gf.film_work_id AND f.rating > 5",
    "SELECT id, l.n FROM content.film_work f CROSS JOIN LATERAL (SELECT count(*) AS n FROM ugc.likes WHERE"
    " film_id = f.id) l",
    "SELECT film_id, r.rating FROM ugc.ratings r JOIN ugc.likes l USING (film_id, user_id)",
    "SELECT f.id FROM content.film_work f WHERE EXISTS (SELECT FROM ugc.likes l WHERE l.film_id = f.id)",
    "SELECT f.id FROM content.film_work f WHERE f.id NOT IN (SELECT film_id FROM ugc.views WHERE film_id IS NOT NULL)",
    "SELECT f.id, (SELECT max(r.rating) FROM ugc.ratings r WHERE r.film_id = f.id) AS best FROM content.film_work f",
    "SELECT f.id FROM content.film_work f WHERE f.rating > ALL (SELECT 5 UNION SELECT 6)",
    # aggregates
    "SELECT type, count(*), avg(rating), min(rating), max(rating), sum(rating) FROM content.film_work GROUP BY type",
    "SELECT film_id, count(*) FILTER (WHERE rating >= 8) AS top, count(DISTINCT user_id) FROM ugc.ratings GROUP BY 1"
    " HAVING count(*) > 3",
    "SELECT f.id, array_agg(DISTINCT g.name ORDER BY g.name) AS genres FROM content.film_work f"
    " JOIN content.genre_film_work gf ON gf.film_work_id = f.id JOIN content.genre g ON g.id = gf.genre_id"
    " GROUP BY f.id",
    "SELECT pf.film_work_id, string_agg(p.full_name, ', ' ORDER BY p.full_name) FROM content.person_film_work pf"
    " JOIN content.person p ON p.id = pf.person_id GROUP BY 1",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY rating) AS median FROM content.film_work",
    "SELECT type, percentile_disc(ARRAY[0.25, 0.5, 0.75]) WITHIN GROUP (ORDER BY rating) FROM content.film_work"
    " GROUP BY 1",
    "SELECT mode() WITHIN GROUP (ORDER BY rating) FROM ugc.ratings",
    "SELECT stddev(rating), stddev_pop(rating), variance(rating), corr(rating, extract(epoch FROM created))"
    " FROM ugc.ratings",
    "SELECT bool_and(rating > 0), bool_or(rating > 9), bit_or(rating), every(rating < 11) FROM ugc.ratings",
    "SELECT regr_slope(rating, extract(epoch FROM created)), regr_r2(rating, extract(epoch FROM created)) FROM"
    " ugc.ratings",
    "SELECT rank(8) WITHIN GROUP (ORDER BY rating) FROM ugc.ratings",
    # grouping sets
    "SELECT type, extract(year FROM creation_date) AS year, count(*) FROM content.film_work GROUP BY ROLLUP (1, 2)",
    "SELECT type, date_trunc('year', creation_date) AS y, count(*) FROM content.film_work GROUP BY CUBE (1, 2)",
    "SELECT type, rating, GROUPING(type, rating) AS level, count(*) FROM content.film_work"
    " GROUP BY GROUPING SETS ((type, rating), (type), ())",
    # WITH
    "WITH liked AS (SELECT film_id, count(*) AS n FROM ugc.likes GROUP BY film_id)"
    " SELECT f.id, coalesce(l.n, 0) AS likes FROM content.film_work f LEFT JOIN liked l ON l.film_id = f.id",
    "WITH a AS (SELECT id, rating FROM content.film_work), b AS MATERIALIZED (SELECT * FROM a WHERE rating > 5),"
    " c AS NOT MATERIALIZED (SELECT id, rating * 2 AS double FROM b) SELECT c.*, b.rating FROM c JOIN b USING (id)",
    "WITH daily AS (SELECT film_id, created::date AS day, count(*) AS n FROM ugc.views GROUP BY 1, 2)"
    " SELECT film_id, day, sum(n) OVER (PARTITION BY film_id ORDER BY day) AS running FROM daily",
    "SELECT id FROM content.film_work UNION ALL SELECT id FROM content.person",
    "SELECT user_id FROM ugc.likes INTERSECT SELECT user_id FROM ugc.views EXCEPT SELECT user_id FROM ugc.ratings",
    # windows
    "SELECT id, row_number() OVER (PARTITION BY type ORDER BY rating DESC NULLS LAST) AS place FROM content.film_work",
    "SELECT id, rank() OVER w, dense_rank() OVER w, ntile(4) OVER w, cume_dist() OVER w, percent_rank() OVER w"
    " FROM content.film_work WINDOW w AS (PARTITION BY type ORDER BY rating)",
    "SELECT id, lag(title, 1, '') OVER w, lead(title) OVER w, first_value(title) OVER w, nth_value(title, 2) OVER w"
    " FROM content.film_work WINDOW w AS (ORDER BY created, id)",
    "SELECT id, avg(rating) OVER (ORDER BY created ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) FROM ugc.ratings",
    "SELECT id, count(*) OVER (ORDER BY created RANGE BETWEEN interval '7 days' PRECEDING AND CURRENT ROW) FROM"
    " ugc.ratings",
    "SELECT id, sum(rating) OVER (ORDER BY id GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE TIES) FROM"
    " ugc.ratings",
    # arrays
    "SELECT ARRAY[1, 2, 3], ARRAY[1, 2] || 3, (ARRAY['a', 'b'])[1], (ARRAY[1, 2, 3])[2:3], cardinality(ARRAY[1, 2])",
    "SELECT id FROM content.film_work WHERE type = ANY (ARRAY['movie', 'tv_show'])",
    "SELECT ARRAY[1, 2] @> ARRAY[1], ARRAY[1, 2] && ARRAY[2, 3], array_position(ARRAY['a', 'b'], 'b'),"
    " array_remove(ARRAY[1, 2], 1), array_to_string(ARRAY['a', NULL, 'c'], ', ', '-'), array_length(ARRAY[1, 2], 1)",
    "SELECT f.id, t.word, t.n FROM content.film_work f, unnest(string_to_array(f.title, ' ')) WITH ORDINALITY"
    " AS t (word, n)",
    "SELECT id, ARRAY(SELECT genre_id FROM content.genre_film_work WHERE film_work_id = f.id ORDER BY 1) FROM"
    " content.film_work f",
    # JSON
    "SELECT f.id, jsonb_agg(jsonb_build_object('id', p.person_id, 'role', p.role) ORDER BY p.role, p.person_id)"
    " FROM content.film_work f JOIN content.person_film_work p ON p.film_work_id = f.id GROUP BY f.id",
    "SELECT id, to_jsonb(f) - 'description' AS j FROM content.film_work f",
    "SELECT '{\"a\": {\"b\": [1, 2]}}'::jsonb -> 'a' -> 'b' ->> 0, '{\"a\": 1}'::jsonb @> '{\"a\": 1}',"
    " '{\"a\": 1}'::jsonb ? 'a'",
    "SELECT '{\"a\": {\"b\": 1}}'::jsonb #>> '{a,b}', jsonb_path_query_first('{\"a\": [1, 2]}', '$.a[*] ? (@ > 1)')",
    "SELECT f.id, e.key, e.value FROM content.film_work f, jsonb_each_text(jsonb_build_object('t', f.title)) AS e",
    'SELECT r.a, r.b FROM jsonb_to_record(\'{"a": 1, "b": "x"}\') AS r (a int, b text)',
    'SELECT e.item FROM jsonb_array_elements_text(\'["a", "b"]\') AS e (item)',
    "SELECT json_object_agg(name, id) FROM content.genre",
    "SELECT JSON_OBJECT('id': id, 'title': title ABSENT ON NULL) FROM content.film_work",
    "SELECT JSON_ARRAYAGG(name ORDER BY name) FROM content.genre",
    "SELECT title IS JSON, jsonb_typeof(to_jsonb(rating)), jsonb_set('{\"a\": 1}', '{a}', '2') FROM content.film_work",
    # dates
    "SELECT id, extract(year FROM creation_date), date_part('month', creation_date), date_trunc('week', created)"
    " FROM content.film_work",
    "SELECT id, created AT TIME ZONE 'Europe/Berlin', (created AT TIME ZONE 'UTC')::date FROM content.film_work",
    "SELECT id FROM content.film_work WHERE created >= now() - interval '1 year' AND created < current_date + 1",
    "SELECT id, age(created), age(now(), created), creation_date + 30, creation_date - date '2000-01-01' FROM"
    " content.film_work",
    "SELECT id, to_char(created, 'YYYY-MM-DD HH24:MI'), to_char(rating, 'FM990.00') FROM content.film_work",
    "SELECT to_date('2024-02-29', 'YYYY-MM-DD'), to_timestamp(0), make_date(2024, 2, 29), make_interval(days => 3)",
    "SELECT date_bin('15 minutes', created, timestamptz '2000-01-01') AS bin, count(*) FROM ugc.views GROUP BY 1",
    "SELECT d.day::date AS day, count(r.id) FROM generate_series(now() - interval '7 days', now(), interval '1"
    " day') AS d (day)"
    " LEFT JOIN ugc.ratings r ON r.created::date = d.day::date GROUP BY 1",
    "SELECT n FROM generate_series(1, 100) AS n",
    "SELECT (date '2024-01-01', date '2024-02-01') OVERLAPS (date '2024-01-15', interval '3 months')",
    "SELECT tstzrange(created, created + interval '1 day') && tstzrange(now(), NULL) FROM content.film_work",
    "SELECT justify_interval(interval '40 days'), isfinite(created), localtimestamp, current_time IS NULL FROM"
    " content.film_work",
    # text
    "SELECT upper(title), lower(title), initcap(title), length(title), left(title, 3), right(title, 3) FROM"
    " content.film_work",
    "SELECT trim(both ' ' from title), substring(title from 1 for 3), position('a' in title) FROM content.film_work",
    "SELECT lpad(row_number() OVER (ORDER BY id)::text, 6, '0') AS number, rpad(title, 40) FROM content.film_work",
    "SELECT format('%s (%s)', title, type), format('%-10s|%5s', 'a', 'b'), format('%I', title) FROM content.film_work",
    "SELECT replace(title, ' ', '_'), translate(title, 'abc', 'xyz'), regexp_replace(title, '[^a-z]', '', 'gi')"
    " FROM content.film_work",
    "SELECT split_part(title, ' ', 1), string_to_array(title, ' '), regexp_split_to_array(title, '\\s+') FROM"
    " content.film_work",
    "SELECT regexp_match(title, '(\\w+) (\\w+)'), regexp_count(title, 'a'), starts_with(title, 'Star') FROM"
    " content.film_work",
    "SELECT concat(title, ' ', type), concat_ws(', ', title, type, NULL), title || ': ' || type FROM content.film_work",
    "SELECT md5(title), encode(sha256(convert_to(title, 'UTF8')), 'hex'), ascii(title), chr(65) FROM content.film_work",
    "SELECT overlay(title placing 'X' from 1 for 1), reverse(title), to_hex(255), quote_literal(title) FROM"
    " content.film_work",
    # full-text search
    "SELECT id FROM content.film_work WHERE to_tsvector('english', title) @@ to_tsquery('english', 'star & wars')",
    "SELECT id, ts_rank(to_tsvector('english', title), q.q) AS rank FROM content.film_work,"
    " plainto_tsquery('english', 'star wars') AS q (q) WHERE to_tsvector('english', title) @@ q.q",
    "SELECT id, ts_headline('english', title, websearch_to_tsquery('english', 'star -trek')) FROM content.film_work",
    "SELECT setweight(to_tsvector('simple', title), 'A') || to_tsvector('simple', coalesce(description, ''))"
    " FROM content.film_work",
    "SELECT ts_rank_cd(to_tsvector('english', title), phraseto_tsquery('english', 'new hope')) FROM content.film_work",
    # numbers
    "SELECT round(rating::numeric, 1), ceil(rating), floor(rating), trunc(rating), abs(-rating), sign(rating)"
    " FROM content.film_work",
    "SELECT power(2, 10), 2 ^ 0.5, sqrt(2), ln(10), log(100), exp(1), pi(), mod(7, 3), div(7, 2), 7 % 3",
    "SELECT width_bucket(rating, 0, 10, 5) AS bucket, count(*) FROM content.film_work GROUP BY 1 ORDER BY 1",
    "SELECT rating::int, rating::numeric(3, 1), cast(rating AS text), '7'::smallint, 1e3, x'ff', 0.1::float8"
    " FROM content.film_work",
    "SELECT num_nulls(description, rating), num_nonnulls(description, rating) FROM content.film_work",
    # ranges, networks, identifiers
    "SELECT int4range(1, 5) @> 3, lower(int4range(1, 5)), upper_inc(numrange(1, 2)),"
    " range_agg(daterange(creation_date,"
    " creation_date + 1)) FROM content.film_work WHERE creation_date IS NOT NULL",
    "SELECT host(inet '10.0.0.1/8'), masklen(inet '10.0.0.0/8'), inet '10.0.0.1' << inet '10.0.0.0/8'",
    # a mart as in the demo
    "SELECT f.id, f.title, count(r.id) AS ratings, round(avg(r.rating), 2) AS average, max(greatest(f.modified,"
    " r.modified))"
    " AS modified FROM content.film_work f LEFT JOIN ugc.ratings r ON r.film_id = f.id GROUP BY f.id",
    "SELECT g.name AS genre, date_trunc('month', v.created) AS month, sum(v.seconds_watched) / 3600.0 AS hours,"
    " count(DISTINCT v.user_id) AS viewers FROM ugc.views v JOIN content.genre_film_work gf ON gf.film_work_id"
    " = v.film_id"
    " JOIN content.genre g ON g.id = gf.genre_id GROUP BY 1, 2",
    "SELECT u.user_id, count(*) FILTER (WHERE u.kind = 'like') AS likes, count(*) FILTER (WHERE u.kind ="
    " 'view') AS views"
    " FROM (SELECT user_id, 'like' AS kind FROM ugc.likes UNION ALL SELECT user_id, 'view' FROM ugc.views) u"
    " GROUP BY 1",
]
