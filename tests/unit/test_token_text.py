"""The text of access tokens."""

from hashlib import sha256

from vitrine import token_text


def test_a_token_has_a_prefix_and_a_checksum_that_finds_every_wrong_character() -> None:
    token = token_text.create()
    assert token_text.PATTERN.fullmatch(token)
    hashed = token_text.hash_of(token)
    assert hashed is not None
    assert len(hashed) == sha256().digest_size
    for place in range(len(token)):
        wrong = token[:place] + ("0" if token[place] != "0" else "1") + token[place + 1 :]
        assert token_text.hash_of(wrong) is None, place
    for text in ("", token[:-1], token + "0", f" {token}", token.upper(), token.replace("vtr_", "xtr_")):
        assert token_text.hash_of(text) is None


def test_no_two_tokens_are_equal_and_none_is_too_large_for_32_bytes() -> None:
    hashes = {token_text.hash_of(token_text.create()) for _ in range(500)}
    assert len(hashes) == 500
    assert None not in hashes
    largest = "z" * 43
    assert token_text.hash_of(f"vtr_{largest}{token_text._checksum(largest)}") is None  # pyright: ignore[reportPrivateUsage]


def test_tokens_are_removed_from_texts() -> None:
    token = token_text.create()
    assert token_text.redact(f"GET /{token}?x={token}!") == "GET /vtr_***?x=vtr_***!"
