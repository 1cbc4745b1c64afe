"""Tells others what happened: signed, again and again until they have it, with a record of each attempt.

What is to be told is a row, written in the transaction in which it happened. Whoever delivers it takes it for a while
first, so that several services on one database do not tell the same twice at the same time; a receiver may still get a
message twice (its answer can be lost) and knows it by its id.

Receivers do not wait for each other: each has at most one message under way, all beside each other, and each message
has a deadline for the whole of it, from looking up the name to the head of the answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from datetime import timedelta
from functools import cached_property
from typing import Any, Final

import anyio
import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service import store
from service.control_tables import Delivery, Webhook
from service.database import Database
from service.fitting import fit_text

EVENTS: Final = ("run.started", "run.ended", "run.failed", "schedule.failed", "schedule.stale", "halt", "test")
PENDING, DELIVERED, FAILED = "PENDING", "DELIVERED", "FAILED"
MOST_ATTEMPTS: Final = 10
# 5 s, 10 s, 20 s and so on: the last of ten attempts comes about 40 minutes after the first.
FIRST_WAIT_S: Final = 5.0
# From the first to the last byte of one attempt, however slowly they come.
ANSWER_S: Final = 10.0
# Whoever has not said by then what came of it was killed.
TAKEN_FOR_S: Final = 120.0
# Messages under way at the same time, each to another receiver.
AT_ONCE: Final = 50
# While one is under way: how late another is noticed.
LOOK_EVERY_S: Final = 0.5

log = logging.getLogger("phoenix.service")


def tell(session: Session, event: str, data: Mapping[str, Any], *, also: str | None = None) -> None:
    """Put a message for everybody who wants to hear of this event, and for the webhook `also`, into the outbox."""
    for hook in session.scalars(select(Webhook).where(Webhook.deleted_at.is_(None))):
        if hook.id == also or event in hook.events.get("names", ()):
            enqueue(session, hook, event, data)


def enqueue(session: Session, hook: Webhook, event: str, data: Mapping[str, Any]) -> Delivery:
    at = store.now()
    identity = store.new_id("delivery")
    body = json.dumps({"id": identity, "event": event, "at": at.isoformat(), "data": dict(data)}, allow_nan=False)
    delivery = Delivery(
        id=identity, webhook_id=hook.id, event=event, body=body, state=PENDING, attempts=0, created_at=at, next_at=at
    )
    session.add(delivery)
    return delivery


def new_secret() -> str:
    return secrets.token_hex(32)


def signature(secret: str, at: int, body: bytes) -> str:
    """`t=UNIX,v1=HEX`: the receiver makes the same HMAC-SHA256 of `UNIX.BODY`, and refuses what is too old."""
    return f"t={at},v1={hmac.new(secret.encode(), f'{at}.'.encode() + body, hashlib.sha256).hexdigest()}"


def wait_after(attempts: int) -> timedelta:
    return timedelta(seconds=FIRST_WAIT_S * 2 ** (attempts - 1))


class Postman:
    """Delivers what is due; `tick` returns when nothing is due or under way any more, or it was told to stop.

    httpx limits each read and has no limit for a whole request; asyncio has, so the messages are tasks of an event
    loop. It has a thread of its own, from the first message to `close`.
    """

    def __init__(
        self, database: Database, client: httpx.AsyncClient | None = None, *, answer_s: float = ANSWER_S
    ) -> None:
        self._database = database
        self._client = client or httpx.AsyncClient(timeout=None, follow_redirects=False)
        self._answer_s = answer_s
        self._opened = ExitStack()
        self.stopping = False

    def close(self) -> None:
        self._opened.close()

    @cached_property
    def _portal(self) -> BlockingPortal:
        portal = self._opened.enter_context(start_blocking_portal(name="phoenix-postman"))
        self._opened.callback(portal.call, self._client.aclose)
        return portal

    def tick(self) -> None:
        with self._database.read() as session:
            due = (Delivery.state == PENDING, Delivery.next_at <= store.now())
            if session.scalars(select(Delivery.id).where(*due).limit(1)).first() is None:
                return
        self._portal.call(self._deliver_all)

    async def _deliver_all(self) -> None:
        """What is taken is sent at once, so that nobody else takes it meanwhile; when told to stop, to its end."""
        under_way: dict[str, asyncio.Task[None]] = {}
        try:
            while not self.stopping:
                for delivery, hook in await anyio.to_thread.run_sync(self._take, tuple(under_way)):
                    under_way[hook.id] = asyncio.create_task(self._deliver(delivery, hook))
                if not under_way:
                    return
                await asyncio.wait(under_way.values(), timeout=LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
                under_way = {hook: task for hook, task in under_way.items() if not task.done()}
        finally:
            await asyncio.gather(*under_way.values())

    def _take(self, busy: Collection[str]) -> list[tuple[Delivery, Webhook]]:
        """Of each receiver that is not busy the message that is due for longest."""
        turn = func.row_number().over(partition_by=Delivery.webhook_id, order_by=(Delivery.next_at, Delivery.id))
        due = (Delivery.state == PENDING, Delivery.next_at <= store.now(), Delivery.webhook_id.not_in(busy))
        firsts = select(Delivery.id, turn.label("turn")).where(*due).subquery()
        query = (
            select(Delivery, Webhook)
            .join(Webhook, Webhook.id == Delivery.webhook_id)
            .join(firsts, firsts.c.id == Delivery.id)
            .where(firsts.c.turn == 1)
            .order_by(Delivery.next_at)
            .limit(AT_ONCE - len(busy))
        )
        with self._database.write() as session:
            found = [(row[0], row[1]) for row in session.execute(query)]
            for delivery, _ in found:
                delivery.attempts += 1
                delivery.next_at = store.now() + timedelta(seconds=TAKEN_FOR_S)
        return found

    async def _deliver(self, delivery: Delivery, hook: Webhook) -> None:
        status, error = (None, "the webhook was deleted") if hook.deleted_at else await self._post(delivery, hook)
        try:
            await anyio.to_thread.run_sync(self._keep, delivery, hook, status, error)
        except Exception:  # a full disk passes; the message is due again when its time is over
            log.exception("what came of message %s could not be kept", delivery.id)

    def _keep(self, delivery: Delivery, hook: Webhook, status: int | None, error: str | None) -> None:
        with self._database.write() as session:
            row = session.get_one(Delivery, delivery.id)
            if row.state != PENDING or (error is not None and row.attempts != delivery.attempts):
                return  # This process was stopped for so long that another one took the message.
            row.status, row.error = status, error
            if error is None:
                row.state, row.delivered_at, row.next_at = DELIVERED, store.now(), None
            elif row.attempts >= MOST_ATTEMPTS or hook.deleted_at is not None:
                row.state, row.next_at = FAILED, None
                log.error("message %s to %s was given up after %d attempts: %s", row.id, hook.url, row.attempts, error)
            else:
                row.next_at = store.now() + wait_after(row.attempts)

    async def _post(self, delivery: Delivery, hook: Webhook) -> tuple[int | None, str | None]:
        """The status of the answer, and why it does not count (None: it does)."""
        body = delivery.body.encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "phoenix-webhook",
            "X-Phoenix-Event": delivery.event,
            "X-Phoenix-Delivery": delivery.id,
            "X-Phoenix-Signature": signature(hook.secret, int(store.now().timestamp()), body),
        }
        try:
            async with asyncio.timeout(self._answer_s):
                # The answer's body is nobody's business: only its head is read.
                async with self._client.stream("POST", hook.url, content=body, headers=headers) as answer:
                    status = answer.status_code
        except TimeoutError:
            return None, f"no whole answer within {self._answer_s:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as failure:
            return None, fit_text(f"no answer: {failure or type(failure).__name__}", 500)
        return status, None if 200 <= status < 300 else f"answered {status}"
