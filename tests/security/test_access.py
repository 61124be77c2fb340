"""The right to call each method: against a table in words, and every method that there is has its line in it."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import pytest

import taihu.protos
from taihu.core.base.errors import RefusedError
from taihu.core.security.access import Access
from taihu.core.security.identity import ROLES, Identity, Role
from taihu.core.security.roles import RULES
from taihu.core.security.token import Token

# s: server, w: worker, 0: worker 0 alone, o: observer, p: operator
TABLE = {
    f"/taihu.v1.{service}/{method}": letters
    for service, methods in {
        "CoordinatorService": {
            "Attend": "w",
            "Seat": "s",
            "Begin": "sw",
            "Join": "sw",
            "Vouch": "sw",
            "BringLayout": "w",
            "Heartbeat": "sw",
            "GetPlan": "sw",
            "ReportSteps": "w",
            "DecideCheckpoint": "w",
            "Stored": "sw",
            "Copy": "w",
            "Compare": "w",
            "GetProfile": "swop",
            "GetStatus": "swop",
            "FixLastStep": "0",
            "Stop": "p",
            "Finish": "sw",
        },
        "ParameterServerService": {
            "Exchange": "w",
            "Initialize": "0",
            "Share": "w",
            "OpenConnection": "w",
            "Keep": "0",
            "Fetch": "w",
        },
        "PeerService": {"Exchange": "w", "OpenConnection": "w"},
        "DoctorService": dict.fromkeys(("GetFacts", "GetTime", "Exchange", "OpenConnection", "MeasureLink"), "swop"),
    }.items()
    for method, letters in methods.items()
}
LETTERS: dict[str, Role] = {"s": "server", "w": "worker", "o": "observer", "p": "operator"}
CALLERS = [Identity("job", role, name) for role in ROLES for name in ("0", "1")]
ACCESS = Access("job", by_certificate=True)


def test_every_method_has_a_rule_and_no_other() -> None:
    names = [module.name for module in iter_modules(taihu.protos.__path__) if module.name.endswith("_pb2")]
    files = [import_module(f"taihu.protos.{name}").DESCRIPTOR for name in names]
    services = [service for file in files for service in file.services_by_name.values()]
    methods = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert {method for method in RULES if method.startswith("/taihu.")} == methods == set(TABLE)


@pytest.mark.parametrize("caller", CALLERS, ids=str)
def test_each_role_may_call_what_is_its_own(caller: Identity) -> None:
    for method, letters in TABLE.items():
        own = {LETTERS[letter] for letter in letters if letter in LETTERS}
        may = caller.role in own or (letters == "0" and caller.member == "worker-0")
        if may:
            ACCESS.allow(method, caller, None)
            continue
        with pytest.raises(RefusedError, match=str(caller)) as caught:
            ACCESS.allow(method, caller, None)
        assert caught.value.reason == "role"


def test_nobody_speaks_for_another_one() -> None:
    worker = Identity("job", "worker", "1")
    exchange = "/taihu.v1.ParameterServerService/Exchange"
    ACCESS.allow(exchange, worker, ("worker", 1))
    for claim in (("worker", 2), ("server", 1)):
        with pytest.raises(RefusedError) as caught:
            ACCESS.allow("/taihu.v1.CoordinatorService/Heartbeat", worker, claim)
        assert caught.value.reason == "rank"


def test_what_has_no_rule_is_nobodys() -> None:
    for caller in (*CALLERS, None):
        with pytest.raises(RefusedError) as caught:
            ACCESS.allow("/taihu.v1.CoordinatorService/Shutdown", caller, None)
        assert caught.value.reason == "method"


@pytest.mark.parametrize(
    ("uris", "reason", "is_known"),
    [
        ((), "identity", False),
        (("https://example.org",), "identity", False),
        ((CALLERS[0].uri, CALLERS[1].uri), "identity", False),
        ((Identity("other", "worker", "1").uri,), "job", True),
    ],
)
def test_a_certificate_says_who_it_is(uris: tuple[str, ...], reason: str, *, is_known: bool) -> None:
    with pytest.raises(RefusedError) as caught:
        ACCESS.identify(uris, None)
    assert (caught.value.reason, caught.value.is_known) == (reason, is_known)


@pytest.mark.parametrize(
    ("said", "reason"),
    [(None, "no_token"), ("", "wrong_token"), ("a" * 31, "wrong_token"), ("ä" * 32, "wrong_token")],
)
def test_the_token_is_said_beside_the_certificate(said: str | None, reason: str) -> None:
    both = Access("job", by_certificate=True, token=Token("a" * 32))
    alone = Access("job", by_certificate=False, token=Token("a" * 32))
    for access in (both, alone):
        with pytest.raises(RefusedError) as caught:
            access.identify([CALLERS[0].uri], said)
        assert (caught.value.reason, caught.value.is_known) == (reason, False)
        assert "a" * 31 not in str(caught.value)
    assert both.identify([CALLERS[0].uri], "a" * 32) == CALLERS[0]
    assert alone.identify([], "a" * 32) is None
