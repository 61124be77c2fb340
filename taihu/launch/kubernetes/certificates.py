"""The certificates of a job in a cluster: the files that a pod finds, and what cert-manager is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from taihu.core.job import Job
from taihu.core.job.security import certified
from taihu.core.security.identity import Identity, member_name
from taihu.launch.kubernetes.options import CERTIFICATES, Issuer, ManifestOptions, Object

CERTIFICATE_API: Final = "cert-manager.io/v1"

# Read by the pod's group, and nobody else.
_MODE: Final = 0o440


def security_settings() -> dict[str, object]:
    """The variables by which every process finds its own files, and refuses to run without them."""
    return {
        "TAIHU_SECURITY__CA": f"{CERTIFICATES}/ca.pem",
        "TAIHU_SECURITY__CERTIFICATE": f"{CERTIFICATES}/{{member}}.pem",
        "TAIHU_SECURITY__KEY": f"{CERTIFICATES}/{{member}}-key.pem",
        "TAIHU_SECURITY__REQUIRED": True,
    }


def certificates_volume(name: str, options: ManifestOptions, role: str, ranks: Iterable[int]) -> Object:
    """The volume with the files of the members that a pod of this kind may be, and of nobody else.

    Args:
        name: of the job's objects.
        options: say of which Secret, or of which issuer.
        role: server or worker.
        ranks: of all pods that are made of the same template.
    """
    members = [member_name(role, rank) for rank in ranks]
    if options.tls_secret is not None:
        keys = ["ca.pem", *(f"{member}{end}" for member in members for end in (".pem", "-key.pem"))]
        sources = [_source(options.tls_secret, {key: key for key in keys})]
    else:
        sources = [
            _source(
                _secret_of(name, member),
                {"tls.crt": f"{member}.pem", "tls.key": f"{member}-key.pem"}
                | ({"ca.crt": "ca.pem"} if not i else {}),
            )
            for i, member in enumerate(members)
        ]
    return {"name": "certificates", "projected": {"defaultMode": _MODE, "sources": sources}}


def issued(name: str, job: Job, issuer: Issuer) -> dict[str, Object]:
    """The specifications of cert-manager's Certificates of all processes of a job, and of who looks on, by name."""
    return {
        _secret_of(name, each.identity.member): _certificate(name, each.identity, each.names, issuer)
        for each in certified(job)
    }


def _certificate(name: str, identity: Identity, names: Iterable[str], issuer: Issuer) -> Object:
    """One that is good for ninety days, and renewed with a new key when a third of them is left."""
    dns = list(names)
    return {
        "secretName": _secret_of(name, identity.member),
        "issuerRef": {"group": "cert-manager.io", "kind": issuer.kind, "name": issuer.name},
        "uris": [identity.uri],
        **({"dnsNames": dns} if dns else {}),
        "usages": ["digital signature", "server auth", "client auth"],
        "privateKey": {"algorithm": "ECDSA", "size": 256, "encoding": "PKCS8", "rotationPolicy": "Always"},
        "duration": "2160h0m0s",
        "renewBefore": "720h0m0s",
    }


def _secret_of(name: str, member: str) -> str:
    return f"{name}-{member}-tls"


def _source(secret: str, paths: dict[str, str]) -> Object:
    return {"secret": {"name": secret, "items": [{"key": key, "path": path} for key, path in paths.items()]}}
