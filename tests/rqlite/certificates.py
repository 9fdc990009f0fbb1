"""Certificates for the stand-in, made for one session."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


class Authority:
    """An authority of one's own."""

    def __init__(self, folder: Path) -> None:
        self.ca_file = folder / "ca.pem"
        self._server_file = folder / "server.pem"
        key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority of one's own")])
        ca = _builder(name, name, key).add_extension(x509.BasicConstraints(True, None), critical=True)
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        authority = ca.add_extension(usage, critical=True).sign(key, hashes.SHA256())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        server = (
            _builder(subject, name, server_key, signer=key)
            .add_extension(names, critical=False)
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        self.ca_file.write_bytes(authority.public_bytes(pem))
        secret = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        self._server_file.write_bytes(secret + server.public_bytes(pem))

    def context(self) -> ssl.SSLContext:
        """Return what a server takes."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._server_file)
        return context


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    signer: ec.EllipticCurvePrivateKey | None = None,
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + 2 * _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key((signer or key).public_key()), critical=False)
    )
