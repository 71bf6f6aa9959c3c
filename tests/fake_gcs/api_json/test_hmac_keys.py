"""HMAC keys."""

from __future__ import annotations

from fake_gcs import FakeGCS
from tests.fake_gcs.asking import ask, send

PLACE = "/storage/v1/projects/p/hmacKeys"


def make(server: FakeGCS, account: str) -> str:
    return str(ask(server, "POST", f"{PLACE}?serviceAccountEmail={account}").json["metadata"]["accessId"])


def test_the_life_of_a_key(memory: FakeGCS) -> None:
    """Its secret is told once; it is deleted only when it is inactive, and then stays so."""
    made = ask(memory, "POST", f"{PLACE}?serviceAccountEmail=a@p").json
    shown = made["metadata"]
    assert (made["kind"], shown["state"], shown["serviceAccountEmail"]) == ("storage#hmacKey", "ACTIVE", "a@p")
    assert (len(shown["accessId"]), len(made["secret"])) == (61, 40)
    place = f"{PLACE}/{shown['accessId']}"
    assert ask(memory, "GET", place).json == shown
    assert ask(memory, "DELETE", place).status == 400
    inactive = send(memory, "PUT", place, {"state": "INACTIVE", "etag": shown["etag"]})
    assert (inactive.status, inactive.json["state"]) == (200, "INACTIVE")
    assert send(memory, "PUT", place, {"state": "ACTIVE", "etag": shown["etag"]}).status == 412
    assert ask(memory, "DELETE", place).status == 204
    assert ask(memory, "GET", place).json["state"] == "DELETED"
    assert send(memory, "PUT", place, {"state": "ACTIVE"}).status == 404
    assert ask(memory, "DELETE", place).status == 404


def test_keys_are_listed_by_project_and_account(memory: FakeGCS) -> None:
    """Deleted ones only when asked for, and page by page."""
    keys = sorted(make(memory, account) for account in ("a@p", "a@p", "b@p"))
    gone = make(memory, "b@p")
    send(memory, "PUT", f"{PLACE}/{gone}", {"state": "INACTIVE"})
    ask(memory, "DELETE", f"{PLACE}/{gone}")

    def listed(query: str = "") -> list[str]:
        return [item["accessId"] for item in ask(memory, "GET", f"{PLACE}?{query}").json["items"]]

    assert listed() == keys
    assert listed("showDeletedKeys=true") == sorted([*keys, gone])
    assert len(listed("serviceAccountEmail=a@p")) == 2
    page = ask(memory, "GET", f"{PLACE}?maxResults=2").json
    assert listed("maxResults=2") + listed(f"pageToken={page['nextPageToken']}") == keys
    assert ask(memory, "GET", "/storage/v1/projects/other/hmacKeys").json["items"] == []
    assert ask(memory, "GET", f"/storage/v1/projects/other/hmacKeys/{keys[0]}").status == 404


def test_what_is_wrong_is_refused(memory: FakeGCS) -> None:
    """No account, no state, a state that is none, an unknown path."""
    key = make(memory, "a@p")
    assert ask(memory, "POST", PLACE).reason == "required"
    assert send(memory, "PUT", f"{PLACE}/{key}", {}).reason == "required"
    for state in ("DELETED", ["ACTIVE"], 5):
        assert send(memory, "PUT", f"{PLACE}/{key}", {"state": state}).reason == "invalid"
    assert ask(memory, "GET", f"{PLACE}/{key}/more").status == 404
    assert ask(memory, "PATCH", f"{PLACE}/{key}").status == 405
