"""Tells others what happened: signed, again and again until they have it, with a record of each attempt.

What is to be told is a row, written in the transaction in which it happened. Whoever delivers it takes it for a while
first, so that several services on one database do not tell the same twice at the same time; a receiver may still get a
message twice (its answer can be lost) and knows it by its id.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import httpx
from sqlalchemy import select
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
ANSWER_S: Final = 5.0
# Whoever has not said by then what came of it was killed.
TAKEN_FOR_S: Final = 120.0
BATCH: Final = 5

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
    """Delivers what is due; `tick` returns when nothing is due any more, or it was told to stop."""

    def __init__(self, database: Database, client: httpx.Client | None = None) -> None:
        self._database = database
        self._client = client or httpx.Client(timeout=ANSWER_S, follow_redirects=False)
        self.stopping = False

    def close(self) -> None:
        self._client.close()

    def tick(self) -> None:
        while not self.stopping and (taken := self._take()):
            for delivery, hook in taken:
                if self.stopping:
                    return  # What was taken is due again when its time is over.
                self._deliver(delivery, hook)

    def _take(self) -> list[tuple[Delivery, Webhook]]:
        due = (Delivery.state == PENDING, Delivery.next_at <= store.now())
        with self._database.read() as session:
            if session.scalars(select(Delivery.id).where(*due).limit(1)).first() is None:
                return []
        with self._database.write() as session:
            query = select(Delivery, Webhook).join(Webhook, Webhook.id == Delivery.webhook_id).where(*due)
            found = [(row[0], row[1]) for row in session.execute(query.order_by(Delivery.next_at).limit(BATCH))]
            for delivery, _ in found:
                delivery.attempts += 1
                delivery.next_at = store.now() + timedelta(seconds=TAKEN_FOR_S)
        return found

    def _deliver(self, delivery: Delivery, hook: Webhook) -> None:
        status, error = (None, "the webhook was deleted") if hook.deleted_at else self._post(delivery, hook)
        with self._database.write() as session:
            row = session.get_one(Delivery, delivery.id)
            row.status, row.error = status, error
            if error is None:
                row.state, row.delivered_at, row.next_at = DELIVERED, store.now(), None
            elif row.attempts >= MOST_ATTEMPTS or hook.deleted_at is not None:
                row.state, row.next_at = FAILED, None
                log.error("message %s to %s was given up after %d attempts: %s", row.id, hook.url, row.attempts, error)
            else:
                row.next_at = store.now() + wait_after(row.attempts)

    def _post(self, delivery: Delivery, hook: Webhook) -> tuple[int | None, str | None]:
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
            # The answer's body is nobody's business: only its head is read.
            with self._client.stream("POST", hook.url, content=body, headers=headers) as answer:
                status = answer.status_code
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as failure:
            return None, fit_text(f"no answer: {failure or type(failure).__name__}", 500)
        return status, None if 200 <= status < 300 else f"answered {status}"
