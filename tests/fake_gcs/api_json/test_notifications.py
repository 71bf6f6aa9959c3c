"""Notification configurations."""

from __future__ import annotations

from fake_gcs import FakeGCS
from tests.fake_gcs.asking import ask, send

PLACE = "/storage/v1/b/bkt/notificationConfigs"


def test_the_life_of_a_configuration(server: FakeGCS) -> None:
    """Made, shown, listed and removed; no id comes twice."""
    config = {"topic": "//pubsub.googleapis.com/projects/p/topics/t", "payload_format": "JSON_API_V1"}
    more = {"event_types": ["OBJECT_FINALIZE"], "object_name_prefix": "a/", "custom_attributes": {"k": "v"}}
    first = send(server, "POST", PLACE, config | more | {"id": "mine"}).json
    assert (config | more).items() <= first.items()
    second = send(server, "POST", PLACE, config).json
    assert ask(server, "GET", f"{PLACE}/{first['id']}").json == first
    assert first["selfLink"] == f"{server.url}{PLACE}/{first['id']}"
    assert ask(server, "GET", PLACE).json["items"] == [first, second]
    assert ask(server, "DELETE", f"{PLACE}/{second['id']}").status == 204
    assert ask(server, "DELETE", f"{PLACE}/{second['id']}").status == 404
    assert ask(server, "GET", f"{PLACE}/{second['id']}").reason == "notFound"
    assert send(server, "POST", PLACE, config).json["id"] not in {first["id"], second["id"]}
    assert "notifications" not in ask(server, "GET", "/storage/v1/b/bkt").json


def test_topic_and_format_are_required(memory: FakeGCS) -> None:
    """400 with the reason; a bucket that is not there is 404."""
    for wrong in ({}, {"topic": "t"}, {"payload_format": "NONE"}):
        refused = send(memory, "POST", PLACE, wrong)
        assert (refused.status, refused.reason) == (400, "required")
    assert ask(memory, "POST", PLACE, b"{").reason == "parseError"
    assert ask(memory, "GET", "/storage/v1/b/none/notificationConfigs").status == 404
