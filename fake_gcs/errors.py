"""Errors as GCS answers them: a status, a reason and a message, rendered as JSON, as XML or as plain text.

The JSON API and the XML API describe the same refusal in two shapes; clients look at the status first and then at
``reason`` (JSON) or ``Code`` (XML), so both are kept here in one table.
"""

from __future__ import annotations

import json
from typing import Literal
from xml.sax.saxutils import escape

Form = Literal["json", "xml", "text"]
"""How a refusal is rendered: by the JSON API, by the XML API, or in place of an object's bytes."""

_REASONS = {
    304: "notModified",
    308: "resumeIncomplete",
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    405: "methodNotAllowed",
    408: "uploadBrokenConnection",
    409: "conflict",
    410: "gone",
    411: "required",
    412: "conditionNotMet",
    413: "uploadTooLarge",
    414: "uriTooLong",
    415: "unsupportedMediaType",
    416: "requestedRangeNotSatisfiable",
    417: "expectationFailed",
    429: "rateLimitExceeded",
    431: "headersTooLarge",
    499: "cancelled",
    500: "backendError",
    501: "notImplemented",
    502: "badGateway",
    503: "backendError",
    504: "gatewayTimeout",
    505: "httpVersionNotSupported",
}

_XML_CODES = {
    400: "InvalidArgument",
    401: "AuthenticationRequired",
    403: "AccessDenied",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    408: "RequestTimeout",
    409: "BucketNotEmpty",
    411: "MissingContentLength",
    412: "PreconditionFailed",
    413: "EntityTooLarge",
    416: "InvalidRange",
    429: "SlowDown",
    500: "InternalError",
    501: "NotImplemented",
    502: "InternalError",
    503: "ServiceUnavailable",
    504: "InternalError",
}


class GCSError(Exception):
    """A refusal with its HTTP status.

    Attributes:
        status: HTTP status, 304 and 308 included.
        message: What a person reads.
        reason: The JSON API's machine-readable word.
        code: The XML API's machine-readable word.
        headers: Further response headers, such as ``Retry-After``.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason or _REASONS.get(status, "invalid")
        self.code = code or _XML_CODES.get(status, "InternalError")
        self.headers = headers

    def as_json(self) -> bytes:
        """The body of the JSON API; empty for 304, which has none."""
        if self.status == 304:
            return b""
        detail = {"message": self.message, "domain": "global", "reason": self.reason}
        return json.dumps({"error": {"code": self.status, "message": self.message, "errors": [detail]}}).encode()

    def as_xml(self) -> bytes:
        """The body of the XML API; empty for 304, which has none."""
        if self.status == 304:
            return b""
        text = f"<Error><Code>{self.code}</Code><Message>{escape(self.message)}</Message></Error>"
        return b"<?xml version='1.0' encoding='UTF-8'?>" + text.encode("utf-8", "replace")

    def as_text(self) -> bytes:
        """The body where an object's bytes were asked for: the message alone; empty for 304, which has none."""
        return b"" if self.status == 304 else self.message.encode("utf-8", "replace")


def no_such_bucket(bucket: str) -> GCSError:
    """404 for a bucket that is not there."""
    return GCSError(404, f"The specified bucket does not exist: {bucket}", code="NoSuchBucket")


def no_such_object(bucket: str, name: str) -> GCSError:
    """404 for an object that is not there."""
    return GCSError(404, f"No such object: {bucket}/{name}")


def invalid(message: str, *, code: str | None = None) -> GCSError:
    """400: the request can not be understood or is not allowed."""
    return GCSError(400, message, code=code)


def missing(parameter: str, *, code: str | None = None) -> GCSError:
    """400: a parameter that has to be there is not."""
    return GCSError(400, f"Required parameter: {parameter}", reason="required", code=code)


def condition_not_met(message: str = "At least one of the pre-conditions you specified did not hold.") -> GCSError:
    """412: a precondition did not hold."""
    return GCSError(412, message)
