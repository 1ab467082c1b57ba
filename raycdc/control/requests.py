"""What both doors of a run ask of a request and put into an answer."""

from __future__ import annotations

import hmac
import json

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

#: Of every answer: nobody keeps it, or takes it for something else; no other page shows it, and none has it run.
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


def error(code: int, text: str) -> Response:
    """An answer that says why there is no other."""
    return JSONResponse({"text": text}, code, headers=HEADERS)


async def json_body(request: Request, *, what: str, bytes_max: int) -> object | Response:
    """What the body of a request says in JSON, which is `what`; else the answer that refuses it."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return error(415, f"{what} is JSON (Content-Type: application/json).")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > bytes_max:
            return error(413, f"{what} has at most {bytes_max} bytes.")
    try:
        found: object = json.loads(bytes(body))
    except ValueError as wrong:
        return error(400, f"{what} is JSON: {wrong}")
    except RecursionError:
        return error(400, f"{what} is JSON, which is not nested so deeply.")
    return found


def is_name(text: str) -> bool:
    """Whether something may be called so: JSON can name halves of characters, and nothing has a NUL in its name."""
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)


def number_of(text: str) -> int | None:
    """The number that a query asks for, of which nine digits are enough; None for anything else."""
    return int(text[:9]) if text[:9].isdecimal() else None


def has_token(request: Request, token: str) -> bool:
    """Whether the request's ``Authorization`` is `token` as a bearer's; it takes as long for one that nearly is."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    known = hmac.compare_digest(given.strip().encode(), token.encode())
    return scheme.lower() == "bearer" and known


def wants_token(refused: Response) -> Response:
    """`refused`, an answer with the code 401, saying what is wanted."""
    refused.headers["WWW-Authenticate"] = "Bearer"
    return refused
