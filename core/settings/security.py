"""`[security]`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from taihu.core.settings.base import FilePath, Section


def _check_placeholder(path: Path) -> Path:
    if re.search(r"[{}]", str(path).replace("{member}", "")) is not None:
        raise ValueError(f"expected no braces but {{member}}, got {str(path)!r}")
    return path


_MemberPath = Annotated[FilePath, AfterValidator(_check_placeholder)]


class SecuritySettings(Section):
    """`[security]`: who may take part. Every process has its own table; see docs/security.md.

    With `ca`, `certificate` and `key`, files in PEM form that `taihu certs` makes, everything but shared memory
    travels under TLS, and both sides show who they are. `{member}` in a path stands for `server-0`, `worker-2`,
    `observer-0` and the like, so that all processes have the same table. Renewed files are taken without a restart.
    With `clients` token who calls shows no certificate, and needs `ca` alone: it says the run's token, which is in
    `token_file`, or in the environment as TAIHU_TOKEN. Without TLS a token is good on one machine alone. Where a
    token is given beside certificates, both are demanded.
    """

    ca: FilePath | None = Field(default=None, description="certificate of the authority that all others come from")
    certificate: _MemberPath | None = Field(
        default=None, description="this process's certificate; {member} is filled in"
    )
    key: _MemberPath | None = Field(default=None, description="the certificate's key, a file that others cannot read")
    clients: Literal["certificate", "token"] = Field(
        default="certificate", description="what callers show under TLS: a certificate, or the run's token alone"
    )
    token_file: FilePath | None = Field(
        default=None, description="file of the run's token, if TAIHU_TOKEN is not in the environment"
    )
    required: bool = Field(default=False, description="refuse to run without certificates or a token")

    @model_validator(mode="after")
    def _files_go_together(self) -> SecuritySettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("security.certificate and security.key belong together: set both, or neither")
        if self.certificate is not None and self.ca is None:
            raise ValueError("security.certificate without security.ca: set the certificate of the authority, too")
        if self.ca is not None and self.certificate is None and self.clients == "certificate":
            raise ValueError(
                "security.ca without a certificate: set security.certificate and security.key, or security.clients = "
                "'token'"
            )
        return self
