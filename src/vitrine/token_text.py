"""The text of an access token: a prefix for secret scanners, 32 random bytes and a checksum, in letters and digits."""

import re
import secrets
import string
from hashlib import sha256
from zlib import crc32

PREFIX = "vtr_"
PATTERN = re.compile(r"vtr_[0-9A-Za-z]{49}")
SHOWN = len(PREFIX) + 4
"""So many characters of a token are stored in clear, to recognise it."""

_BYTES = 32
_BODY, _CHECKSUM = 43, 6  # digits of base 62
_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase


def create() -> str:
    body = _encode(int.from_bytes(secrets.token_bytes(_BYTES), "big"), _BODY)
    return PREFIX + body + _checksum(body)


def hash_of(token: str) -> bytes | None:
    """SHA-256 of the random bytes; None if the text is not a token. The checksum finds typing errors at once."""
    if not PATTERN.fullmatch(token):
        return None
    body, checksum = token[len(PREFIX) : -_CHECKSUM], token[-_CHECKSUM:]
    number = _decode(body)
    if _checksum(body) != checksum or number >= 1 << 8 * _BYTES:
        return None
    return sha256(number.to_bytes(_BYTES, "big")).digest()


def redact(text: str) -> str:
    return PATTERN.sub(f"{PREFIX}***", text)


def _checksum(body: str) -> str:
    return _encode(crc32(body.encode()), _CHECKSUM)


def _encode(number: int, length: int) -> str:
    digits: list[str] = []
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def _decode(text: str) -> int:
    number = 0
    for letter in text:
        number = number * len(_DIGITS) + _DIGITS.index(letter)
    return number
