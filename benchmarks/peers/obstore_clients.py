"""How the peers that read with obstore open it."""

from __future__ import annotations

import json
from typing import Any

from obstore.store import GCSStore


def open_store(endpoint: str, bucket: str) -> GCSStore:
    """A store on a GCS server without credentials."""
    key = {
        "gcs_base_url": endpoint,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    # rustls takes no certificate that is its own authority, as that of a server of a benchmark.
    options: Any = {"allow_http": True, "allow_invalid_certificates": endpoint.startswith("https:")}
    return GCSStore(bucket, service_account_key=json.dumps(key), client_options=options)


def list_shards(store: GCSStore, prefix: str) -> list[str]:
    """Names that begin with a prefix, which may end inside of a path segment."""
    return sorted(item["path"] for page in store.list() for item in page if item["path"].startswith(prefix))


def split(pattern: str) -> tuple[str, str]:
    """Bucket, and the prefix before the first wildcard."""
    bucket, _, name = pattern.removeprefix("gs://").partition("/")
    return bucket, name.partition("*")[0]
