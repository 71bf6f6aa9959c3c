"""Buckets, and the small endpoints around them."""

from __future__ import annotations

import pytest

from fake_gcs import FakeGCS, ServiceOptions
from tests.fake_gcs.asking import ask, send


def test_a_bucket_is_made_shown_changed_listed_and_removed(server: FakeGCS) -> None:
    """The whole life of a bucket."""
    made = send(server, "POST", "/storage/v1/b?project=p", {"name": "new-b", "location": "europe-west1"}).json
    assert (made["name"], made["location"], made["metageneration"]) == ("new-b", "EUROPE-WEST1", "1")
    assert ask(server, "GET", "/storage/v1/b/new-b").json == made
    refused = send(server, "POST", "/storage/v1/b", {"name": "b-2"})
    assert (refused.status, refused.reason) == (400, "required")
    assert send(server, "POST", "/storage/v1/b?project=p", {}).reason == "required"
    assert ask(server, "POST", "/storage/v1/b?project=p", b"{").reason == "parseError"
    assert send(server, "POST", "/storage/v1/b?project=p", {"name": "new-b"}).status == 409
    patched = send(server, "PATCH", "/storage/v1/b/new-b", {"labels": {"a": "1"}}).json
    assert (patched["labels"], patched["metageneration"]) == ({"a": "1"}, "2")
    assert send(server, "PATCH", "/storage/v1/b/new-b?ifMetagenerationMatch=1", {}).status == 412
    updated = send(server, "PUT", "/storage/v1/b/new-b", {"storageClass": "NEARLINE"}).json
    assert updated["storageClass"] == "NEARLINE"
    assert "labels" not in updated
    page = ask(server, "GET", "/storage/v1/b?project=p&maxResults=1").json
    rest = ask(server, "GET", f"/storage/v1/b?project=p&pageToken={page['nextPageToken']}").json
    assert [bucket["name"] for bucket in page["items"] + rest["items"]] == ["bkt", "new-b"]
    assert ask(server, "DELETE", "/storage/v1/b/new-b").status == 204
    assert ask(server, "GET", "/storage/v1/b/new-b").status == 404


def test_a_bucket_with_objects_is_not_removed(server: FakeGCS) -> None:
    """409 while there is an object."""
    server.put("bkt", "x", b"")
    assert ask(server, "DELETE", "/storage/v1/b/bkt").status == 409
    assert ask(server, "DELETE", "/bkt").status == 409
    server.delete("bkt", "x")
    assert ask(server, "DELETE", "/bkt").status == 204


@pytest.mark.parametrize("strict", [False, True])
def test_archived_versions_keep_a_bucket_only_when_asked(strict: bool) -> None:
    """GCS refuses to delete such a bucket; other emulators do not, and suites rely on that."""
    with FakeGCS(options=ServiceOptions(strict_bucket_delete=strict)) as server:
        server.create_bucket("bkt", {"versioning": {"enabled": True}})
        server.put("bkt", "x", b"")
        server.delete("bkt", "x")
        assert ask(server, "DELETE", "/storage/v1/b/bkt").status == (409 if strict else 204)


@pytest.mark.parametrize("name", ["", "a", "UPPER", "a..b", "../up", "a/b", "-a", "a-", ".fake_gcs", "x" * 300, "é", 5])
def test_bucket_names_gcs_refuses_are_400(memory: FakeGCS, name: object) -> None:
    """Nothing becomes a folder by its name alone."""
    assert send(memory, "POST", "/storage/v1/b?project=p", {"name": name}).status == 400


def test_a_locked_retention_policy_only_grows(server: FakeGCS) -> None:
    """It is dated when it is set; locking needs the metageneration; then it is neither removed nor reduced."""
    place = "/storage/v1/b/bkt"
    assert send(server, "POST", f"{place}/lockRetentionPolicy").reason == "required"
    assert send(server, "POST", f"{place}/lockRetentionPolicy?ifMetagenerationMatch=1").status == 400
    for period in ("x", None, {"retentionPeriod": "9"}):
        assert send(server, "PATCH", place, {"retentionPolicy": {"retentionPeriod": period}}).status == 400
    made = send(server, "PATCH", place, {"retentionPolicy": {"retentionPeriod": "60"}}).json
    assert (made["retentionPolicy"]["retentionPeriod"], made["retentionPolicy"]["isLocked"]) == ("60", False)
    assert send(server, "POST", f"{place}/lockRetentionPolicy?ifMetagenerationMatch=1").status == 412
    locked = send(server, "POST", f"{place}/lockRetentionPolicy?ifMetagenerationMatch={made['metageneration']}").json
    assert locked["retentionPolicy"] == made["retentionPolicy"] | {"isLocked": True}
    assert send(server, "PATCH", place, {"retentionPolicy": None}).status == 403
    assert send(server, "PUT", place, {}).status == 403
    assert send(server, "PATCH", place, {"retentionPolicy": {"retentionPeriod": 59}}).status == 403
    longer = send(server, "PATCH", place, {"retentionPolicy": {"retentionPeriod": 61}}).json["retentionPolicy"]
    assert longer == locked["retentionPolicy"] | {"retentionPeriod": "61"}


def test_small_endpoints(memory: FakeGCS) -> None:
    """Tokens, layouts, permissions and policies are what clients want to see."""
    token = ask(memory, "POST", "/token", b"grant_type=x").json
    assert (token["token_type"], token["expires_in"]) == ("Bearer", 3600)
    layout = ask(memory, "GET", "/storage/v1/b/bkt/storageLayout").json
    assert layout["hierarchicalNamespace"] == {"enabled": False}
    permitted = ask(memory, "GET", "/storage/v1/b/bkt/iam/testPermissions?permissions=a.b&permissions=c.d").json
    assert permitted["permissions"] == ["a.b", "c.d"]
    assert ask(memory, "GET", "/storage/v1/b/bkt/iam").json["bindings"] == []
    assert ask(memory, "GET", "/storage/v1/projects/p/serviceAccount").status == 200
