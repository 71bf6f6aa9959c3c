"""The sentence that names the bottleneck follows the evidence."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.bottleneck import Shares, name_bottleneck

STARVED = Shares(consumer_waited=0.9, workers_busy=0.1, machine_busy=0.2, reads_waiting=0.0, reads_idle=0.1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"consumer_waited": 0.02, "workers_busy": 0.95}, "the consumer"),
        ({"workers_busy": 0.93}, "decode CPU"),
        ({"machine_busy": 0.6, "server_busy": 0.3}, "CPU of this machine"),
        ({"machine_busy": 0.3, "others_busy": 0.6}, "CPU of this machine"),
        ({"reads_waiting": 0.7}, "network, by the limit of requests in flight"),
        ({}, "network;"),
        ({"reads_idle": 0.9}, "none stands out"),
    ],
)
def test_the_bottleneck_is_what_was_busy_while_the_consumer_waited(changes: dict[str, float], named: str) -> None:
    """A consumer that never waits is the bottleneck whatever else is busy; else workers, machine, network in turn."""
    sentence = name_bottleneck(dataclasses.replace(STARVED, **changes))
    assert sentence.startswith(f"Bottleneck: {named}")
    assert sentence.endswith(".")


def test_no_share_is_said_to_be_above_the_whole() -> None:
    """Clocks of several processes do not agree to the last tick; a sentence with 103 % would be wrong all the same."""
    assert "100 %" in name_bottleneck(dataclasses.replace(STARVED, workers_busy=1.03))
