"""Messages to others: signed, tried again with ever longer waits, on record."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from service import store
from service.control_tables import Delivery
from service.webhooks import MOST_ATTEMPTS, Postman, wait_after
from tests.service.helpers import Harness, Json, problem


class Receiver:
    """A web server that answers as it is told and keeps what it got."""

    def __init__(self, answers: list[int]) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.got.append((dict(self.headers.items()), body))
                self.send_response(answers.pop(0))
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@contextmanager
def receiver(*answers: int) -> Iterator[Receiver]:
    running = Receiver(list(answers))
    thread = threading.Thread(target=running.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield running
    finally:
        running.server.shutdown()
        thread.join()
        running.server.server_close()


@contextmanager
def postman(api: Harness, answer_s: float = 10.0) -> Iterator[Postman]:
    man = Postman(api.service.database, httpx.AsyncClient(timeout=None, trust_env=False), answer_s=answer_s)
    yield man
    man.close()


async def hook(api: Harness, url: str) -> tuple[str, str]:
    answer = await api.post("/webhooks", {"url": url, "description": "a test"})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"], answer.json()["secret"]


async def deliveries(api: Harness, webhook: str) -> list[Json]:
    items: list[Json] = (await api.get(f"/webhooks/{webhook}/deliveries"))["items"]
    return items


def pass_time(api: Harness) -> timedelta:
    """Make what waits due now; how long it would have waited."""
    with api.service.database.write() as session:
        (row,) = session.query(Delivery)
        assert row.next_at is not None
        waited = row.next_at - store.now()
        row.next_at = store.now() - timedelta(seconds=1)
        return waited


async def test_a_receiver_that_fails_twice_gets_its_message_the_third_time(api: Harness) -> None:
    with receiver(500, 503, 204) as other, postman(api) as man:
        webhook, secret = await hook(api, other.url)
        await api.post(f"/webhooks/{webhook}/test", {"reason": "hello"})
        waits = []
        for attempt in (1, 2):
            man.tick()
            (seen,) = await deliveries(api, webhook)
            assert (seen["state"], seen["attempts"]) == ("PENDING", attempt) and seen["error"].startswith("answered 50")
            man.tick()
            assert len(other.got) == attempt, "not before its time"
            waits.append(pass_time(api))
        man.tick()
        (seen,) = await deliveries(api, webhook)
        assert (seen["state"], seen["attempts"], seen["status"], seen["error"]) == ("DELIVERED", 3, 204, None)
        assert seen["delivered_at"] and seen["next_at"] is None and waits[1] > waits[0] > timedelta(0)
        man.tick()
        assert len(other.got) == 3
    bodies = {body for _, body in other.got}
    assert len(bodies) == 1 and json.loads(bodies.pop())["data"] == {"by": "local", "reason": "hello"}
    headers, body = other.got[-1]
    at, _, said = headers["X-Phoenix-Signature"].removeprefix("t=").partition(",v1=")
    assert hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest() == said
    assert headers["X-Phoenix-Delivery"] == seen["id"] and headers["X-Phoenix-Event"] == "test"


@contextmanager
def dripping(ends: Callable[[], bool]) -> Iterator[str]:
    """The address of a receiver that sends a byte of its answer oftener than any limit per read, until that `ends`."""
    over = threading.Event()

    def answer(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                other, _ = listener.accept()
                with other, contextlib.suppress(OSError):
                    other.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                    while not ends() and not over.wait(0.01):
                        other.sendall(b"a")
                    other.sendall(b"\r\nConnection: close\r\n\r\n")
                    other.shutdown(socket.SHUT_WR)
                    while other.recv(65536):  # closed with a request unread, the connection would be reset
                        pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_a_receiver_that_drips_holds_up_no_other(api: Harness) -> None:
    """It answers only once the other one has all of its messages."""
    with receiver(200, 200) as other, dripping(lambda: len(other.got) == 2) as slow, postman(api, answer_s=60) as man:
        hooks = [(await hook(api, url))[0] for url in (slow, other.url)]
        for webhook in (hooks[0], *hooks, hooks[1]):
            await api.post(f"/webhooks/{webhook}/test", {})
        man.tick()
        states = [(seen["state"], seen["attempts"]) for webhook in hooks for seen in await deliveries(api, webhook)]
        assert states == [("DELIVERED", 1)] * 4


async def test_a_receiver_that_never_ends_its_answer_is_left_in_time(api: Harness) -> None:
    with dripping(lambda: False) as slow, postman(api, answer_s=0.3) as man:
        webhook, _ = await hook(api, slow)
        for _ in range(2):
            await api.post(f"/webhooks/{webhook}/test", {})
        man.tick()
        missed = await deliveries(api, webhook)
    told = [(seen["state"], seen["attempts"], seen["error"]) for seen in missed]
    assert told == [("PENDING", 1, "no whole answer within 0.3 s")] * 2
    first, second = sorted(datetime.fromisoformat(seen["next_at"]) for seen in missed)
    assert second - first >= timedelta(seconds=0.25), "one after the other"


async def test_what_another_service_took_meanwhile_is_not_said_to_have_failed(api: Harness) -> None:
    """Its process was stopped for longer than a message is taken for, and goes on."""
    webhook, _ = await hook(api, "http://127.0.0.1:9/nobody")
    await api.post(f"/webhooks/{webhook}/test", {})
    with postman(api) as man:
        ((first, hooked),) = man._take(())
        pass_time(api)
        ((second, _),) = man._take(())
        assert (first.attempts, second.attempts) == (1, 2) and man._take(()) == []
        man._keep(second, hooked, 204, None)
        man._keep(first, hooked, None, "no answer")
    (seen,) = await deliveries(api, webhook)
    assert (seen["state"], seen["status"], seen["error"]) == ("DELIVERED", 204, None)


async def test_a_message_is_given_up_in_the_end(api: Harness) -> None:
    webhook, _ = await hook(api, "http://127.0.0.1:9/nobody")
    await api.post(f"/webhooks/{webhook}/test", {})
    with api.service.database.write() as session:
        session.query(Delivery).one().attempts = MOST_ATTEMPTS - 1
    with postman(api) as man:
        man.tick()
    (seen,) = await deliveries(api, webhook)
    assert (seen["state"], seen["attempts"]) == ("FAILED", MOST_ATTEMPTS) and seen["error"].startswith("no answer")
    assert wait_after(1).total_seconds() == 5 and wait_after(9).total_seconds() == 1280


async def test_the_secret_is_told_once_and_a_deleted_webhook_hears_nothing(api: Harness) -> None:
    webhook, secret = await hook(api, "http://127.0.0.1:9/")
    assert len(secret) == 64
    (listed,) = (await api.get("/webhooks"))["items"]
    assert listed["id"] == webhook and listed["secret"] is None
    await api.post(f"/webhooks/{webhook}/test", {})
    assert (await api.client.delete(f"/api/v1/webhooks/{webhook}")).status_code == 204
    assert (await api.get("/webhooks"))["items"] == []
    with postman(api) as man:
        man.tick()
    with api.service.database.read() as session:
        row = session.query(Delivery).one()
        assert (row.state, row.error) == ("FAILED", "the webhook was deleted")
    problem(await api.post(f"/webhooks/{webhook}/test", {}), 404)


@pytest.mark.parametrize(
    "url",
    ["ftp://x/", "http:///x", "http://?x", "http://[::1", "http://x:99999/", "javascript:alert(1)", "http://x y/", ""],
)
async def test_addresses_that_are_none_are_refused(api: Harness, url: str) -> None:
    problem(await api.post("/webhooks", {"url": url}), 422)
