"""Access control lists and policies: kept as they were set."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_gcs import FakeGCS
from tests.fake_gcs.asking import ask, o, send

B = "/storage/v1/b/bkt"
READER = {"entity": "allUsers", "role": "READER"}
PRIVATE = {("project-owners-0", "OWNER"), ("project-editors-0", "OWNER"), ("project-viewers-0", "READER")}


def roles(entries: list[dict[str, str]]) -> set[tuple[str, str]]:
    return {(entry["entity"], entry["role"]) for entry in entries}


@pytest.mark.parametrize("place", [f"{B}/acl", f"{B}/defaultObjectAcl", f"{B}/o/{o('a/b')}/acl"])
def test_the_life_of_an_entry(server: FakeGCS, place: str) -> None:
    """Listed, inserted, shown, changed and removed, in each of the three lists; a change counts."""
    server.put("bkt", "a/b", b"")
    holder = place.rpartition("/")[0]
    before = int(ask(server, "GET", holder).json["metageneration"])
    assert roles(ask(server, "GET", place).json["items"]) == PRIVATE
    made = send(server, "POST", place, READER).json
    assert made["kind"] == ("storage#bucketAccessControl" if place == f"{B}/acl" else "storage#objectAccessControl")
    assert ask(server, "GET", made["selfLink"].removeprefix(server.url)).json == made
    assert roles(ask(server, "GET", place).json["items"]) == PRIVATE | {("allUsers", "READER")}
    assert send(server, "PATCH", f"{place}/allUsers", {"role": "OWNER"}).json["role"] == "OWNER"
    assert send(server, "PUT", f"{place}/allUsers", READER).json["role"] == "READER"
    assert send(server, "POST", place, {**READER, "role": "OWNER"}).json["role"] == "OWNER"
    assert ask(server, "DELETE", f"{place}/allUsers").status == 204
    assert roles(ask(server, "GET", place).json["items"]) == PRIVATE
    for method in ("GET", "DELETE", "PATCH"):
        assert send(server, method, f"{place}/allUsers", {"role": "OWNER"}).status == 404
    assert int(ask(server, "GET", holder).json["metageneration"]) == before + 5
    for wrong, reason in (
        ({}, "required"),
        ({"entity": "allUsers"}, "required"),
        ({**READER, "role": "KING"}, "invalid"),
        ({**READER, "role": ["OWNER"]}, "invalid"),
        ({**READER, "entity": "nobody"}, "invalid"),
    ):
        refused = send(server, "POST", place, wrong)
        assert (refused.status, refused.reason) == (400, reason)


def test_lists_travel_with_what_they_belong_to(server: FakeGCS) -> None:
    """Set with a bucket or an object, whole or by the name of a predefined one; shown when asked for or changed."""
    changed = send(server, "PATCH", B, {"acl": [READER], "defaultObjectAcl": [READER]}).json
    assert (changed["acl"], changed["defaultObjectAcl"]) == ([READER], [READER])
    assert "acl" not in ask(server, "GET", B).json
    assert ask(server, "GET", f"{B}?projection=full").json["acl"] == [READER]
    by_default = ask(server, "POST", "/upload/storage/v1/b/bkt/o?uploadType=media&name=x&projection=full", b"").json
    assert by_default["acl"] == [READER]
    assert send(server, "PATCH", f"{B}?predefinedAcl=publicRead", {"acl": []}).json["acl"] != [READER]
    predefined = send(server, "PATCH", f"{B}/o/x?predefinedAcl=private", {"acl": []}).json["acl"]
    assert roles(predefined) == {("project-owners-0", "OWNER")}
    assert send(server, "PATCH", f"{B}/o/x", {"acl": []}).json["acl"] == []
    assert roles(send(server, "PATCH", f"{B}/o/x", {"acl": None}).json["acl"]) == PRIVATE
    copy = send(server, "POST", f"{B}/o/x/copyTo/b/bkt/o/y?destinationPredefinedAcl=publicRead", {})
    assert ("allUsers", "READER") in roles(ask(server, "GET", f"{B}/o/y?projection=full").json["acl"])
    assert copy.status == 200
    listed = ask(server, "GET", f"{B}/o?projection=full").json["items"]
    assert all(item["acl"] for item in listed)
    for query, body in (("predefinedAcl=none", {}), ("", {"acl": [{}]}), ("", {"acl": "allUsers"})):
        assert send(server, "PATCH", f"{B}?{query}", body).status == 400
        assert send(server, "PATCH", f"{B}/o/x?{query}", body).status == 400


def test_a_policy_is_kept_and_changed_by_those_who_saw_it(server: FakeGCS) -> None:
    """What was set is read back; an ``etag`` that is not the latest is 412, none at all goes through."""
    first = ask(server, "GET", f"{B}/iam").json
    bindings = [{"role": "roles/storage.objectViewer", "members": ["allUsers"]}]
    made = send(server, "PUT", f"{B}/iam", {**first, "version": 3, "bindings": bindings})
    assert (made.status, made.json["bindings"], made.json["version"]) == (200, bindings, 3)
    assert ask(server, "GET", f"{B}/iam?optionsRequestedPolicyVersion=3").json == made.json
    assert send(server, "PUT", f"{B}/iam", first).status == 412
    assert send(server, "PUT", f"{B}/iam", {"bindings": []}).json["etag"] != made.json["etag"]
    for wrong in ('{"bindings": {}}', '{"version": 2}', '{"version": []}', '{"etag": []}'):
        assert ask(server, "PUT", f"{B}/iam", wrong.encode()).status in {400, 412}
    permitted = ask(server, "GET", f"{B}/iam/testPermissions?permissions=a.b&permissions=c%2Fd").json
    assert permitted["permissions"] == ["a.b", "c/d"]
    assert ask(server, "GET", "/storage/v1/b/none/iam").status == 404


def test_a_directory_keeps_what_was_set(tmp_path: Path) -> None:
    """Lists, policies and notifications of a bucket survive a restart."""
    with FakeGCS(tmp_path, buckets=["bkt"]) as server:
        send(server, "POST", f"{B}/acl", READER)
        policy = send(server, "PUT", f"{B}/iam", {"bindings": [{"role": "r", "members": []}]}).json
        config = send(server, "POST", f"{B}/notificationConfigs", {"topic": "t", "payload_format": "NONE"}).json
    with FakeGCS(tmp_path) as server:
        assert ask(server, "GET", f"{B}/acl/allUsers").json["role"] == "READER"
        assert ask(server, "GET", f"{B}/iam").json == policy
        assert ask(server, "GET", f"{B}/notificationConfigs").json["items"][0]["id"] == config["id"]
