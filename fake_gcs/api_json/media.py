"""Reading bytes by the JSON API: ``alt=media``."""

from __future__ import annotations

from fake_gcs.api_json.objects import named_version
from fake_gcs.media import media_response
from fake_gcs.messages import Request, Response, Steps
from fake_gcs.service import Service


def get_media(service: Service, request: Request) -> Response | Steps:
    """The bytes of an object."""
    version = named_version(service, request)
    if version.checksums is None:
        return _hash_and_send(service, request)
    return media_response(request, version)


def _hash_and_send(service: Service, request: Request) -> Steps:
    yield from service.catalogue.hash_steps(named_version(service, request))
    return media_response(request, named_version(service, request))
