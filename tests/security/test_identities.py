"""Identities in URIs: all that are written are read back, and nothing else is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.base.errors import ConfigError
from taihu.core.security.identity import Identity, dns_name, identity_among, parse_identity

ALPHABET = "abcXYZ019._-"
NAMES = st.builds("{}{}".format, st.sampled_from("aZ7"), st.text(ALPHABET, max_size=20))
MEMBERS = st.builds(
    Identity,
    NAMES,
    st.sampled_from(["server", "worker"]),
    st.integers(0, 99_999).map(str),
    st.builds("{}{}".format, st.sampled_from("a7"), st.text("abc019.-_", max_size=20)),
)
OTHERS = st.builds(Identity, NAMES, st.sampled_from(["observer", "operator"]), NAMES)


@given(MEMBERS | OTHERS)
def test_what_is_written_is_read_back(identity: Identity) -> None:
    assert parse_identity(identity.uri) == identity
    assert identity_among(["urn:something", identity.uri]) == identity


@given(MEMBERS, MEMBERS)
def test_two_members_of_jobs_have_two_names(one: Identity, other: Identity) -> None:
    names = {dns_name(each.member, each.job) for each in (one, other)}
    # Names of hosts do not tell apart what differs in case alone.
    assert len(names) == len({(each.job, each.role, each.name) for each in (one, other)})


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "https://taihu/taihu/job/worker/1",
        "spiffe://taihu/other/job/worker/1",
        "spiffe://taihu/taihu/job/worker",
        "spiffe://taihu/taihu/job/worker/01",
        "spiffe://taihu/taihu/job/worker/-1",
        "spiffe://taihu/taihu/job/worker/one",
        "spiffe://taihu/taihu/job/worker/1/",
        "spiffe://taihu/taihu/job/worker/1\n",
        "spiffe://taihu/taihu/job/root/1",
        "spiffe://taihu/taihu/../worker/1",
        "spiffe://taihu/taihu//worker/1",
        "spiffe:///taihu/job/worker/1",
        "spiffe://TAIHU/taihu/job/worker/1",
        "spiffe://user@taihu/taihu/job/worker/1",
    ],
)
def test_other_texts_are_no_identity(uri: str) -> None:
    with pytest.raises(ConfigError, match="expected spiffe://") as caught:
        parse_identity(uri)
    assert "\n" not in str(caught.value)
    assert identity_among([uri]) is None


def test_a_certificate_has_one_identity() -> None:
    uris = [Identity("a", "worker", "1").uri, Identity("a", "worker", "2").uri]
    assert identity_among(uris) is None
    assert identity_among([]) is None
