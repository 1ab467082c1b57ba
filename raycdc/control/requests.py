"""What both doors of a run ask of a request and put into an answer."""

from __future__ import annotations

import hmac

from starlette.requests import Request
from starlette.responses import Response

#: Of every answer: nobody keeps it, or takes it for something else.
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def has_token(request: Request, token: str) -> bool:
    """Whether the request's ``Authorization`` is `token` as a bearer's; it takes as long for one that nearly is."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    known = hmac.compare_digest(given.strip().encode(), token.encode())
    return scheme.lower() == "bearer" and known


def wants_token(refused: Response) -> Response:
    """`refused`, an answer with the code 401, saying what is wanted."""
    refused.headers["WWW-Authenticate"] = "Bearer"
    return refused
