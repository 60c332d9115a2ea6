"""The text of access tokens."""

from hashlib import sha256

from vitrine.text import TOKEN_PATTERN, new_token, redact, token_checksum, token_hash


def test_a_token_has_a_prefix_and_a_checksum_that_finds_every_wrong_character() -> None:
    token = new_token()
    assert TOKEN_PATTERN.fullmatch(token)
    hashed = token_hash(token)
    assert hashed is not None
    assert len(hashed) == sha256().digest_size
    for place in range(len(token)):
        wrong = token[:place] + ("0" if token[place] != "0" else "1") + token[place + 1 :]
        assert token_hash(wrong) is None, place
    for text in ("", token[:-1], token + "0", f" {token}", token.upper(), token.replace("vtr_", "xtr_")):
        assert token_hash(text) is None


def test_no_two_tokens_are_equal_and_none_is_too_large_for_32_bytes() -> None:
    hashes = {token_hash(new_token()) for _ in range(500)}
    assert len(hashes) == 500
    assert None not in hashes
    largest = "z" * 43
    assert token_hash(f"vtr_{largest}{token_checksum(largest)}") is None  # pyright: ignore[reportPrivateUsage]


def test_tokens_are_removed_from_texts() -> None:
    token = new_token()
    assert redact(f"GET /{token}?x={token}!") == "GET /vtr_***?x=vtr_***!"
