"""A webhook over real HTTP: signed, with a deadline whatever the server does, and never followed elsewhere."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from raycdc.config import config_from_dict
from raycdc.config.sections.notifications import NotifyOptions
from raycdc.core.secrets import Renewed
from raycdc.errors import ConfigError
from raycdc.observe.notify.messages import check_body
from raycdc.observe.notify.notifier import test_message as tried
from raycdc.observe.notify.outbox import NotSentError
from raycdc.observe.notify.receivers import Webhook, signature
from raycdc.sandbox.servers.certificates import write_certificates

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


@contextmanager
def answering(
    answer: bytes, *, drip: bool = False, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[bytes]]]:
    """A server that reads a request and writes `answer`, byte by byte for ever with `drip`; its URL, and requests."""
    requests: list[bytes] = []
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with suppress(OSError), connection:
                    talk = connection if tls is None else tls.wrap_socket(connection, server_side=True)
                    with talk:
                        requests.append(_request(talk))
                        talk.sendall(answer)
                        while drip and not over.wait(0.01):
                            talk.sendall(b"x")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http{'' if tls is None else 's'}://127.0.0.1:{server.getsockname()[1]}/hook?team=data", requests
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            server.close()
            thread.join()


def _request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += _some(connection)
    return head + b"\r\n\r\n" + body


def _some(connection: socket.socket) -> bytes:
    if not (data := connection.recv(65536)):
        raise ConnectionResetError("the request ends early")
    return data


def webhook(url: str, **options: object) -> Webhook:
    return Webhook(NotifyOptions.model_validate({"type": "webhook", "url": url, "timeout": "60s", **options}))


def refusal(hook: Webhook) -> NotSentError:
    with pytest.raises(NotSentError) as caught:
        hook.send(tried("shop"))
    return caught.value


def test_the_signature_is_that_of_standard_webhooks() -> None:
    # Made by the project's own library, standardwebhooks 1.1.0.
    known = "v1,GWvjEzx3AphU7wha3hNZPXJnymF9Fg+ZdvPQqWPOjZ0="
    assert signature(KEY, "msg_1", 1614265330, b'{"test": 2432232314}') == known


def test_a_message_is_posted_and_signed() -> None:
    message = tried("shop")
    with answering(b"HTTP/1.1 204 No Content\r\n\r\n") as (url, requests):
        webhook(url, secret=SECRET).send(message)
    head, _, body = requests[0].partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert first == "POST /hook?team=data HTTP/1.1"
    assert (headers["content-type"], headers["webhook-id"]) == ("application/json", message.id)
    assert headers["webhook-signature"] == signature(KEY, message.id, int(headers["webhook-timestamp"]), body)
    check_body(body)


@pytest.mark.parametrize(
    ("status", "again"), [("500 Oh", True), ("429 Slow", True), ("404 Gone", False), ("301 Moved", False)]
)
def test_an_answer_says_whether_to_come_again(status: str, again: bool) -> None:
    with answering(f"HTTP/1.1 {status}\r\nRetry-After: 7\r\nLocation: http://127.0.0.1:1/\r\n\r\n".encode()) as (
        url,
        seen,
    ):
        error = refusal(webhook(url))
    assert (error.again, status[:3] in str(error), len(seen)) == (again, True, 1)
    assert error.after_s == (0 if status.startswith("3") else 7)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nx-"])
def test_a_server_that_never_ends_its_answer_is_left_at_the_deadline(answer: bytes) -> None:
    with answering(answer, drip=True) as (url, _):
        assert str(refusal(webhook(url, timeout="200ms"))) == "it did not answer within 0.2 s"


def test_a_server_that_is_down_is_tried_again_and_no_text_shows_the_path() -> None:
    with answering(b"") as (url, _):
        pass
    error = refusal(webhook(url))
    assert error.again
    assert "team" not in f"{error} {webhook(url).name} {webhook(url)!r}"


def test_certificates_are_verified(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with answering(b"HTTP/1.1 200 OK\r\n\r\n", tls=context) as (url, requests):
        webhook(url, ca=str(tmp_path / "ca.pem")).send(tried("shop"))
        assert "certificate" in str(refusal(webhook(url)))
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"url": "http://hooks.example.org/x"}, "plain HTTP to another machine"),
        ({"url": "ftp://hooks.example.org/x"}, "must begin with https://"),
        ({"url": "https://me:geheim@hooks.example.org/x"}, "no name and password"),
        ({"url": "https://hooks.example.org:99999/geheim"}, "https://HOST/PATH"),
        ({"url": "https://hooks.example.org/a\r\nb"}, "https://HOST/PATH"),
        ({"url": "https://hooks..example.org/geheim"}, "https://HOST/PATH"),
        ({"url": f"https://{'a' * 64}.example.org/geheim"}, "https://HOST/PATH"),
        ({}, "url is required"),
        ({"url": "https://hooks.example.org/geheim", "secret": "geheim"}, "must be whsec_"),
        ({"url": "https://hooks.example.org/x", "command": ["true"]}, "command: not of type"),
        ({"type": "command"}, "command is required"),
        ({"type": "command", "command": [" "]}, "must begin with a program"),
    ],
)
def test_a_receiver_that_cannot_be_is_refused_without_its_secrets(keys: dict[str, object], complaint: str) -> None:
    document = {
        "pipeline": {"name": "shop"},
        "source": {"type": "datagen", "tables": ["a.b"]},
        "sink": {"type": "console"},
        "notify": [{"type": "webhook", **keys}],
    }
    with pytest.raises(ConfigError) as caught:
        config_from_dict(document)
    assert complaint in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_plain_http_elsewhere_is_by_choice_only() -> None:
    assert webhook("http://hooks.example.org/x", allow_http=True).name == "http://hooks.example.org"


def test_a_key_that_stays_wrong_holds_up_what_comes_behind_for_a_minute_alone(tmp_path: Path) -> None:
    (address := tmp_path / "url").write_text("")
    key = tmp_path / "key"
    now_s = 1000.0

    def secret(number: int) -> str:
        return f"whsec_{base64.b64encode(bytes([number]) * 32).decode()}"

    def again(after_s: float) -> bool:
        nonlocal now_s
        now_s += after_s
        return refusal(hook).again

    with (
        answering(b"HTTP/1.1 401 Unauthorized\r\n\r\n") as (wrong, _),
        answering(b"HTTP/1.1 204 No Content\r\n\r\n") as (right, _),
    ):
        address.write_text(wrong)
        key.write_text(secret(0))
        options = {"url": Renewed(wrong, f"${{file:{address}}}"), "secret": Renewed(secret(0), f"${{file:{key}}}")}
        given = NotifyOptions.model_validate({"type": "webhook", "timeout": "60s", **options})
        hook = Webhook(given, clock=lambda: now_s)
        assert [again(0), again(59), again(1), again(3600)] == [True, True, False, False]
        # One message is taken, and then the receiver's key is changed before ours is.
        address.write_text(right)
        hook.send(tried("shop"))
        address.write_text(wrong)
        assert again(0)
        for number in range(1, 6):
            key.write_text(secret(number))
            assert again(50)
        # Texts that are others each time are not tried without an end either.
        key.write_text(secret(6))
        assert not again(50)


def test_address_and_key_are_read_again_for_each_message(tmp_path: Path) -> None:
    (path := tmp_path / "path").write_text("yesterday")
    (key := tmp_path / "key").write_text(SECRET)
    with answering(b"HTTP/1.1 401 Unauthorized\r\n\r\n") as (url, requests):
        address = url.partition("/hook")[0] + "/${file:" + str(path) + "}"
        hook = webhook(
            Renewed(address.replace(f"${{file:{path}}}", "yesterday"), address),
            secret=Renewed(SECRET, f"${{file:{key}}}"),
        )
        # Whoever changes it at the receiver first has it refused for a moment.
        assert refusal(hook).again
        path.write_text("today")
        other = bytes(range(1, 33))
        key.write_text(f"whsec_{base64.b64encode(other).decode()}")
        assert refusal(hook).again
        key.write_text("nothing")
        unfit = refusal(hook)
    assert (unfit.again, str(unfit)) == (True, "its url or secret has become one that cannot be used")
    assert [request.split(b" ")[1] for request in requests] == [b"/yesterday", b"/today"]
    for request, signed_by in zip(requests, (KEY, other), strict=True):
        head, _, body = request.partition(b"\r\n\r\n")
        lines = (line.partition(": ") for line in head.decode().split("\r\n")[1:])
        headers = {name.lower(): value for name, _, value in lines}
        signed = signature(signed_by, headers["webhook-id"], int(headers["webhook-timestamp"]), body)
        assert headers["webhook-signature"] == signed
    assert hook.key == webhook(address.replace(f"${{file:{path}}}", "yesterday")).key
