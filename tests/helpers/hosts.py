"""Host headers that every port of Vitrine must accept or refuse."""

ALLOWED = ("vitrine.example.com", "*.example.net")
"""The names of the settings in tests of the header."""

GOOD_HOSTS = [
    "localhost",
    "localhost:8000",
    "LOCALHOST:1",
    "localhost.",
    "127.0.0.1",
    "127.0.0.1:65535",
    "127.9.9.9",
    "[::1]",
    "[::1]:8000",
    "[0:0:0:0:0:0:0:1]:80",
    "[::ffff:127.0.0.1]",
    "vitrine.example.com",
    "Vitrine.Example.COM:443",
    "a.b.example.net",
]
BAD_HOSTS = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "localhost:8000@evil.example",
    "evil.example#localhost",
    "user@localhost",
    "localhost, evil.example",
    "localhost evil.example",
    "localhost/",
    "[::1",
    "[::1]x",
    "[::1%25lo]",
    "::1",
    "localhost:",
    "localhost:999999",
    "localhost..",
    "",
    "0.0.0.0:8000",
    "2130706433",
    "127.1",
    "192.0.2.1",
    "example.net",
    "badexample.net",
    "xn--lcalhost-n2a",
    "localhost\x00",
]
