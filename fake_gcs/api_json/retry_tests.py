"""The Retry Test API's endpoints."""

from __future__ import annotations

from fake_gcs.api_json.resources import json_response
from fake_gcs.errors import invalid
from fake_gcs.messages import Request, Response, read_object
from fake_gcs.service import Service


def create_retry_test(service: Service, request: Request) -> Response:
    """Register a test."""
    value = read_object(request.body)
    instructions = value.get("instructions")
    if not isinstance(instructions, dict):
        raise invalid("A retry test needs instructions.")
    transport = str(value.get("transport", "HTTP"))
    if transport != "HTTP":
        raise invalid(f"Unknown transport: {transport[:40]}")
    return json_response(request, service.retry_tests.create(instructions, transport).as_resource())


def list_retry_tests(service: Service, request: Request) -> Response:
    """All tests."""
    return json_response(request, {"retry_test": [test.as_resource() for test in service.retry_tests.list()]})


def get_retry_test(service: Service, request: Request) -> Response:
    """What is left of a test."""
    return json_response(request, service.retry_tests.get(request.params["id"]).as_resource())


def delete_retry_test(service: Service, request: Request) -> Response:
    """Forget a test."""
    service.retry_tests.delete(request.params["id"])
    return Response(200)
