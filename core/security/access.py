"""Whether a call is let in: who makes it, by certificate and token, and whether that one may."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from taihu.core.base.errors import RefusedError
from taihu.core.security.identity import Identity, Role, identity_among
from taihu.core.security.roles import RULES, Rule
from taihu.core.security.token import Token

Claim = tuple[Role, int]
"""The role and rank that a call says it is made by."""

_ORDER: Final = ("server", "worker", "observer", "operator")


@dataclass(frozen=True)
class Access:
    """The access to one process of `job`.

    Attributes:
        job: the name that identities have to have.
        by_certificate: callers have shown a certificate of the same authority.
        token: the run's, which every caller says; None where there is none.
        rules: of the methods, by full name.
    """

    job: str
    by_certificate: bool
    token: Token | None = None
    rules: Mapping[str, Rule] = field(default_factory=lambda: RULES)

    def rule(self, method: str) -> Rule:
        """The rule of a method.

        Raises:
            RefusedError: there is none, so that nobody may call it.
        """
        if method not in self.rules:
            raise RefusedError(f"{method}: no such method is offered to anybody; check the address", "method")
        return self.rules[method]

    def identify(self, uris: Iterable[str], said: str | None) -> Identity | None:
        """The caller with the `uris` of a certificate and a token that was `said`; None by the token alone.

        Raises:
            RefusedError: it has not shown what it has to.
        """
        identity = self._identity(uris) if self.by_certificate else None
        if self.token is not None and not self.token.is_said_by(said):
            who = "" if identity is None else f"{identity}: "
            if said is None:
                raise RefusedError(f"{who}the run's token is missing; set TAIHU_TOKEN", "no_token", is_known=False)
            raise RefusedError(
                f"{who}the token is not this run's: every run has another one; set TAIHU_TOKEN to this one's",
                "wrong_token",
                is_known=False,
            )
        return identity

    def _identity(self, uris: Iterable[str]) -> Identity:
        found = tuple(uris)
        identity = identity_among(found)
        if identity is None:
            raise RefusedError(
                f"the certificate has {', '.join(found) or 'no URI'}: expected one identity of the form "
                "spiffe://DOMAIN/taihu/JOB/ROLE/NAME; `taihu certs` makes such certificates",
                "identity",
                is_known=False,
            )
        if identity.job != self.job:
            raise RefusedError(f"{identity}: this is job {self.job!r}; check the address and the certificate", "job")
        return identity

    def allow(self, method: str, identity: Identity | None, claim: Claim | None) -> None:
        """Let `identity` call `method`, in which it says that it is `claim`.

        Raises:
            RefusedError: it may not, or it is another one.
        """
        rule = self.rule(method)
        if identity is None or rule.open_to_all:
            return
        name = method.rpartition("/")[2]
        if identity.role not in rule.roles or (rule.only is not None and identity.rank != rule.only):
            raise RefusedError(f"{identity} may not call {name}: {_allowed(rule)} may", "role")
        if claim is not None and claim != (identity.role, identity.rank):
            raise RefusedError(
                f"{identity} calls {name} as {claim[0]} {claim[1]}: give each process its own certificate", "rank"
            )


def _allowed(rule: Rule) -> str:
    rank = "" if rule.only is None else f" {rule.only}"
    return " or ".join(f"{role}{rank}" for role in _ORDER if role in rule.roles) or "nobody"
