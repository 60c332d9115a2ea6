"""The rule for the Host header, of the API and of the port of a runner."""

import pytest

from tests.helpers.hosts import ALLOWED, BAD_HOSTS, GOOD_HOSTS
from vitrine.listening import HostRule


@pytest.mark.promise("K3")
@pytest.mark.parametrize("exposed", [False, True])
def test_only_addresses_and_the_names_of_the_settings_are_served(exposed: bool) -> None:
    rule = HostRule(ALLOWED, exposed)
    assert [host for host in GOOD_HOSTS if rule.refuses([host])] == []
    addresses = ["192.0.2.1", "0.0.0.0:8000"]
    names = [host for host in BAD_HOSTS if host not in addresses]
    assert [host for host in names if not rule.refuses([host])] == []
    # other machines use an address of this one, which no page can be given as its name
    assert [rule.refuses([host]) is None for host in addresses] == [exposed, exposed]


@pytest.mark.promise("K3")
def test_a_refusal_names_the_setting_and_not_the_header() -> None:
    refusal = HostRule((), exposed=False).refuses(["evil.example"])
    assert refusal is not None
    assert (refusal.status, refusal.code) == (421, "WRONG_HOST")
    assert "VITRINE_ALLOWED_HOSTS" in refusal.detail
    assert "evil" not in refusal.detail
