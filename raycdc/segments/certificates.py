"""Certificates of one job's Flight servers, signed by an authority that the driver makes for this job alone.

Every process that reads segments gets the authority's certificate along with the job's token. Before it sends the
token, it checks that the authority signed the server's certificate for the server's address. Keys exist in memory only.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass, field
from typing import Any, Self

#: A run may last for years, and its servers' certificates cannot be replaced meanwhile.
_VALID = datetime.timedelta(days=3650)
#: Certificates are valid from this long ago, because the clocks of two machines may differ.
_EARLIER = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server's certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


class JobAuthority:
    """The authority that signs the certificates of one job's servers. Its pickle does not contain its key, because only
    the driver signs.
    """

    def __init__(self, certificate: bytes, key: bytes = b"") -> None:
        self.certificate = certificate
        self._key = key

    def __repr__(self) -> str:
        return "JobAuthority()"

    def __reduce__(self) -> tuple[type[JobAuthority], tuple[bytes]]:
        return JobAuthority, (self.certificate,)

    @classmethod
    def new(cls) -> Self:
        """Return an authority with a new key."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("raycdc job")
        builder = _builder(name, name, key.public_key())
        return cls(
            *_signed(builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True), key, key)
        )

    def identity(self, host: str) -> ServerIdentity:
        """Return a new identity for a server that others reach at `host`, an address or a name."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        assert self._key, "only the driver signs"
        signer = load_pem_private_key(self._key, password=None)
        authority = x509.load_pem_x509_certificate(self.certificate)
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            reached: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            reached = x509.DNSName(host)
        builder = _builder(authority.subject, _name("raycdc spool"), key.public_key())
        named = builder.add_extension(x509.SubjectAlternativeName([reached]), critical=False)
        return ServerIdentity(*_signed(named, key, signer))


def _name(common: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])


def _builder(issuer: Any, subject: Any, key: Any) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + _VALID)
    )


def _signed(builder: Any, key: Any, signer: Any) -> tuple[bytes, bytes]:
    """Return the certificate signed by `signer`, and its private `key`, both as PEM."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    certificate = builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)
    return certificate, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
