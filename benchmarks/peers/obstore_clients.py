"""How the peers that read with obstore open it."""

from __future__ import annotations

import json

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
    return GCSStore(bucket, service_account_key=json.dumps(key), client_options={"allow_http": True})


def list_shards(store: GCSStore, prefix: str) -> list[str]:
    """Names that begin with a prefix, which may end inside of a path segment."""
    return sorted(item["path"] for page in store.list() for item in page if item["path"].startswith(prefix))


def split(pattern: str) -> tuple[str, str]:
    """Bucket, and the prefix before the first wildcard."""
    bucket, _, name = pattern.removeprefix("gs://").partition("/")
    return bucket, name.partition("*")[0]
