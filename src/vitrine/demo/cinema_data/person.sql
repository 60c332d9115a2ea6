-- Adds the persons with the numbers from cinema.first to cinema.last.

INSERT INTO content.person (id, full_name, created, modified)
SELECT digest::uuid,
       (ARRAY['Ada', 'Amara', 'Anton', 'Björn', 'Carla', 'Chidi', 'Claire', 'Daniel', 'Elena', 'Emil', 'Esther', 'Farah',
              'George', 'Hana', 'Hugo', 'Ines', 'Ivan', 'Jasper', 'Joan', 'Kofi', 'Lena', 'Louis', 'Mara', 'Milo',
              'Nadia', 'Noah', 'Olga', 'Omar', 'Paula', 'Quentin', 'Rosa', 'Samir', 'Søren', 'Tara', 'Tomás', 'Uma',
              'Viktor', 'Wanda', 'Yuki', 'Zoë'])[1 + floor(40 * pg_temp.cinema_chance(digest, 0))::int] || ' ' ||
       CASE WHEN n > 1000 THEN chr(65 + floor(26 * pg_temp.cinema_chance(digest, 8))::int) || '. ' ELSE '' END ||
       (ARRAY['Abara', 'Adler', 'Almeida', 'Arden', 'Beck', 'Bianchi', 'Castell', 'Chen', 'Dubois', 'Eriksson', 'Falk',
              'Ferreira', 'Fischer', 'Gallo', 'Grant', 'Hayashi', 'Holm', 'Ibarra', 'Ivanova', 'Jansen', 'Kaplan',
              'Kowalski', 'Laurent', 'Lindqvist', 'Marlow', 'Mensah', 'Moreau', 'Nakamura', 'Novák', 'O''Hara', 'Okafor',
              'Petrov', 'Quist', 'Reyes', 'Romano', 'Sato', 'Silva', 'Stern', 'Thorne', 'Ueda', 'Valdez', 'Varga',
              'Weiss', 'Winter', 'Xu', 'Yilmaz', 'Young', 'Zeller', 'Ziegler', 'Żak'])
           [1 + floor(50 * pg_temp.cinema_chance(digest, 16))::int],
       timestamptz '2020-01-01 00:00:00+00' + interval '1 minute' * n, pg_temp.cinema_moment(n)
  FROM generate_series(current_setting('cinema.first')::bigint, current_setting('cinema.last')::bigint) AS n,
       LATERAL (SELECT pg_temp.cinema_digest('person', n) AS digest OFFSET 0) AS d
 WHERE NOT EXISTS (SELECT FROM content.person AS known WHERE known.id = digest::uuid)
 ORDER BY 1;
