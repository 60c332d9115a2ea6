-- One table with every type that a mart may meet, and the values that are easily lost on the way

CREATE TYPE ugc.mood AS ENUM ('sad', 'so so', 'happy');
CREATE TYPE ugc.place AS (street text, house integer);
CREATE DOMAIN ugc.score AS integer CHECK (VALUE BETWEEN 0 AND 10);
CREATE DOMAIN ugc.best_score AS ugc.score CHECK (VALUE > 5);
CREATE TABLE ugc.everything (
    id integer PRIMARY KEY, small smallint, big bigint, object oid, amount numeric, price numeric(12, 4), short real,
    long double precision, flag boolean, words text, code varchar(10), padded char(5), letter "char", label name,
    bytes bytea, day date, at timestamptz, local_at timestamp, rough_at timestamptz(3), clock time, zoned_clock timetz,
    span interval, key uuid, doc json, docb jsonb, numbers integer[], texts text[], grid integer[][], spans interval[],
    docs jsonb[], moments timestamptz[], mood ugc.mood, moods ugc.mood[], place ugc.place, score ugc.score,
    best ugc.best_score, address inet, network cidr, range int4range, ranges tstzrange, bits bit varying(8),
    point point, box box, boxes box[], vector tsvector, money money, scores ugc.score[]
);
INSERT INTO ugc.everything VALUES
(1, 1, 1, 1, 1.50, 1.5, 0.1, 0.1, true, 'a', 'abc', 'ab', 'x', 'name', '\x00ff', '2026-02-28',
 '2026-02-28 12:34:56.789012+03', '2026-02-28 12:34:56.7', '2026-02-28 12:34:56.789012', '12:34:56.789', '12:34:56+05:30',
 '1 year 2 mons 3 days 04:05:06.789', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"b" : 1.00, "a": [1, null]}',
 '{"b": 1.00, "a": [1, null]}', '{1,NULL,3}', '{"a b","",NULL,"NULL","q\"uo\\te","x,y","{}"}', '{{1,2},{3,4}}',
 '{"1 mon","26:00:00"}', '{"{\"a\": 1.0}","null"}', '{infinity,"2026-01-01 00:00:00+00"}', 'so so', '{sad,"so so",NULL}',
 '("a, ""b""",5)', 7, 8, '10.0.0.1', '10.0.0.0/8', '[1,5)', '["2026-01-01 00:00:00+00",)', B'101', '(1,2)', '(1,2),(3,4)',
 '{(1,2),(3,4);(5,6),(7,8)}', 'a:1 b:2', '$1,234.50', '{1,2}'),
(2, -32768, -9223372036854775808, 4294967295, 'NaN', 'NaN', 'NaN', 'NaN', false, '', '', '', '', '', '', 'infinity',
 'infinity', 'infinity', '-infinity', '24:00:00', '24:00:00-00', '-1 days +02:00:00', '00000000-0000-0000-0000-000000000000',
 'null', 'null', '{}', '{}', '{}', '{}', '{}', '{}', 'sad', '{}', '(,)', 0, 6, '::1', '::/0', 'empty', '(,)', B'', '(0,0)',
 '(0,0),(0,0)', '{}', '', '-$0.01', '{}'),
(3, 32767, 9223372036854775807, 0, -123456789012345678901234567890.1234567890, -0.0001, 3.4028235e38, 1e308, NULL,
 E'tab\t newline\n return\r back\\slash \\N quote" \b\f\v', E'a\tb\\N', 'abcde', '\', 'a"b', '\x5c4e', '-infinity', '-infinity',
 '-infinity', '0044-03-15 01:02:03.5+00 BC', '00:00:00', '00:00:00.000001+00', '-1 year -2 mons +3 days -04:05:06.000001',
 'ffffffff-ffff-ffff-ffff-ffffffffffff', '"\u0041"', '"A"', '[0:1]={7,8}', '[-1:0]={a,b}', '[0:0][3:3]={{1}}',
 '{"-3 days"}', '{"[1.0]"}', '{-infinity}', 'happy', '{happy}', NULL, 10, 10, '10.0.0.1/8', '10.0.0.0/8', '(,)', 'empty',
 B'11111111', '(-1.5,1e300)', '(1,1),(0,0)', NULL, '''a b'':1A', '$92,233,720,368,547,758.07', '{NULL}'),
(4, 0, 0, 7, 0.000000000000, 0.0000, '-Infinity', 'Infinity', true, '\N', '\N', NULL, NULL, NULL, NULL, '0044-03-15 BC',
 '12345-06-07 08:09:10.123456+00', '0001-01-01 00:00:00', '2026-01-01', '23:59:59.999999', '23:59:59.999999-15:59', '26:00:00',
 NULL, '1.00', '1.00', NULL, '{\\N}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
 NULL, NULL, NULL, NULL, NULL),
(5, NULL, NULL, NULL, 1e-20, 12345678.1234, 1e-45, 5e-324, false, 'Звёздные войны ☄ 👽', 'ё', 'ж', NULL, 'ü', '\xdeadbeef',
 '9999-12-31', '9999-12-31 23:59:59.999999+00', '4713-01-01 00:00:00 BC', '10000-01-01', '12:00', '12:00+00', '00:00:00', NULL,
 'true', 'true', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
 NULL, NULL, NULL),
(6, NULL, NULL, NULL, 'Infinity', NULL, -0.0, -0.0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
 NULL, NULL, '{"n": 12345678901234567890.123456789}', '{"n": 12345678901234567890.123456789}', NULL, NULL, NULL, NULL, NULL,
 NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
