"""What an iterator must know of its pipeline for states, beside the position: it comes with the elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from asyncdata.runtime.state.choices import Chosen
from asyncdata.runtime.state.listings import RecordedListing
from asyncdata.runtime.state.skipped import Skipped
from asyncdata.runtime.state.tracks import Event


class News(NamedTuple):
    """What has happened since the delivery before, or of a state: in the whole epoch.

    Attributes:
        listings: That were made.
        skipped: What error policies have let pass, by their place in the plan.
        events: What happened to tracks; not of a state, which has the tracks themselves.
        choices: In which order steps passed elements on, where that is recorded; not of a state.
    """

    listings: tuple[RecordedListing, ...] = ()
    skipped: Mapping[str, Skipped] = {}
    events: tuple[Event, ...] = ()
    choices: tuple[Chosen, ...] = ()

    def then(self, later: News) -> News:
        """Everything up to the end of later, but for events and choices."""
        if not later.listings and not later.skipped:
            return self
        listings = {listing.key: listing for listing in (*self.listings, *later.listings)}
        skipped = dict(self.skipped)
        for place, part in later.skipped.items():
            skipped[place] = skipped.get(place, Skipped()).then(part)
        return News(tuple(listings.values()), skipped)


NOTHING: Final = News()
"""Nothing has happened."""
