"""A self-signed certificate made on the fly, for a server that lives as long as a test."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NAMES = ("localhost", "storage.googleapis.com", "www.googleapis.com", "*.storage.googleapis.com")
_ADDRESSES = ("127.0.0.1", "::1")


def make_certificate(host: str) -> tuple[bytes, bytes]:
    """A certificate that is its own authority, and its key, both as PEM. Good for a week."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fake_gcs")])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [x509.DNSName(text) for text in _NAMES]
    addresses = {*_ADDRESSES}
    try:
        addresses.add(str(ipaddress.ip_address(host)))
    except ValueError:
        if host not in _NAMES:
            names.append(x509.DNSName(host))
    names += [x509.IPAddress(ipaddress.ip_address(text)) for text in sorted(addresses)]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=7))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return certificate.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)


def server_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """A context that serves with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "both.pem"
        path.touch(mode=0o600)
        path.write_bytes(certificate + key)
        context.load_cert_chain(path)
    return context
