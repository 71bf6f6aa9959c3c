"""Options of cloud stores that both libraries for them understand: obstore and fsspec's. Pure.

Endpoint, credentials and region have one spelling (fsspec's). Options that only obstore has go into ``config`` under
obstore's own names. Error messages never contain values, because some are secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from asyncdata.errors import AccessDeniedError, StorageError
from asyncdata.storage.http1.tls import unusable_ca_file, verifies_tls
from asyncdata.storage.reader import option_of_names

GS: Final = ("gs",)
S3: Final = ("s3",)
AZURE: Final = ("az",)
SCHEMES: Final = (*GS, *S3, *AZURE)
SPELLINGS: Final = ("gs", "gcs", "s3", "s3a", "az", "azure", "abfs", "abfss")
"""The prefixes of URLs; options are stored under the short names."""

# Ours to obstore's name.
_S3_KEYS: Final = {
    "endpoint_url": "endpoint",
    "region": "region",
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
}
_AZURE_KEYS: Final = {
    "endpoint_url": "endpoint",
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_key",
    "tenant_id": "tenant_id",
    "client_id": "client_id",
    "client_secret": "client_secret",
}


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """What obstore's constructors take.

    Attributes:
        config: Of the store.
        client: Of its HTTP client.
    """

    config: dict[str, Any] = field(repr=False)
    client: dict[str, Any] = field(repr=False)


def store_config(scheme: str, options: Mapping[str, Any]) -> StoreConfig:
    """The documented options of a scheme in obstore's terms.

    Raises:
        AccessDeniedError: ``token`` names no file.
        StorageError: Another option has no value that it can have.
    """
    config: dict[str, Any] = {}
    headers: dict[str, str] = {}
    if scheme in GS:
        _set(config, "base_url", options.get("endpoint_url"))
        config |= _gs_credentials(options.get("token"))
        # Objects that are kept compressed are to be sent as they are kept: a decompressed body has no ranges.
        headers["accept-encoding"] = "gzip"
        if options.get("user_project"):
            headers["x-goog-user-project"] = str(options["user_project"])
    elif scheme in S3:
        for ours, theirs in _S3_KEYS.items():
            _set(config, theirs, options.get(ours))
        if options.get("endpoint_url"):
            config["virtual_hosted_style_request"] = False
        if _is_on(options, "requester_pays"):
            config["request_payer"] = True
    else:
        for ours, theirs in _AZURE_KEYS.items():
            _set(config, theirs, options.get(ours))
    if _is_on(options, "anon"):
        config["skip_signature"] = True
    config |= option_of_names(options, "config")
    return StoreConfig(config, _client(options, headers))


def fsspec_options(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options as the storage_options of s3fs or adlfs; keys that are theirs alone pass unchanged.

    Raises:
        StorageError: ``config`` or ``proxy``, which only obstore understands.
    """
    chosen = {name: value for name, value in options.items() if name != "backend"}
    ours = sorted({"config", "proxy", "verify_tls", "ca_file"} & set(chosen))
    if scheme in SCHEMES and ours:
        raise StorageError(f"options that need obstore (pip install asyncdata[obstore]): {', '.join(ours)}")
    if scheme in S3 and "region" in chosen:
        chosen["client_kwargs"] = {**dict(chosen.get("client_kwargs") or {}), "region_name": chosen.pop("region")}
    return chosen


def _gs_credentials(token: object) -> dict[str, Any]:
    if token == "anon":  # noqa: S105 -- the word for no credentials
        return {"skip_signature": True}
    if token is None or token == "google_default":  # noqa: S105 -- the word for the usual places
        return {}
    if not Path(str(token)).is_file():
        raise AccessDeniedError("the option 'token' names no file; use 'anon', 'google_default' or a file's path")
    return {"application_credentials": str(token)}


def _client(options: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    client: dict[str, Any] = {}
    if headers:
        client["default_headers"] = dict(headers)
    if str(options.get("endpoint_url") or "").lower().startswith("http:"):
        client["allow_http"] = True
    if not verifies_tls(options):
        client["allow_invalid_certificates"] = True
    if ca_file := options.get("ca_file"):
        try:
            client["root_certificate"] = Path(ca_file).read_bytes()
        except (OSError, ValueError, TypeError) as error:
            raise unusable_ca_file(ca_file, error) from None
    if options.get("proxy"):
        client["proxy_url"] = str(options["proxy"])
    return client


def _is_on(options: Mapping[str, Any], name: str) -> bool:
    value = options.get(name)
    if not isinstance(value, bool | None):
        # The text "false" is true.
        raise StorageError(f"the storage option {name!r} must be True or False")
    return bool(value)


def _set(config: dict[str, Any], key: str, value: object) -> None:
    if value is not None:
        config[key] = value
