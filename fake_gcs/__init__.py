"""A GCS server good enough to fool real clients, and to be the bad weather.

It speaks the JSON and the XML API over HTTP or HTTPS, keeps objects in memory or in a directory, and gives latency,
bandwidth and faults as set. Standard use in a test:

>>> with FakeGCS(buckets=["data"]) as server:
...     _ = server.put("data", "a.txt", b"hello")
...     server.read("data", "a.txt")
b'hello'
"""

from __future__ import annotations

from fake_gcs.faults import Fault, Rule
from fake_gcs.journal import Entry, Journal
from fake_gcs.process import FakeGCSProcess
from fake_gcs.profiles import Latency, Profile, far, profile_from, profile_named, regional, zero
from fake_gcs.server import FakeGCS
from fake_gcs.service import ServiceOptions
from fake_gcs.serving import Limits

__all__ = [
    "Entry",
    "FakeGCS",
    "FakeGCSProcess",
    "Fault",
    "Journal",
    "Latency",
    "Limits",
    "Profile",
    "Rule",
    "ServiceOptions",
    "far",
    "profile_from",
    "profile_named",
    "regional",
    "zero",
]
