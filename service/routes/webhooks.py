"""Webhooks: whom to tell what happened, and a record of what was told."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, Field, HttpUrl, TypeAdapter
from sqlalchemy import select
from sqlalchemy.orm import Session

from service import audit, store, webhooks
from service.access import CallerOf
from service.control_tables import Delivery, Webhook
from service.idempotency import Answer, once
from service.paging import page
from service.patterns import LINK
from service.problems import not_found
from service.routes.common import IDEMPOTENT, MOST_ITEMS, PROBLEMS, Cursor, Id, Limit, ServiceOf
from service.shapes import Reason, Shape, Why

router = APIRouter(tags=["webhooks"], responses=PROBLEMS)

NO_REASON = Why()
EventName = Literal["run.started", "run.ended", "run.failed", "schedule.failed", "schedule.stale", "halt"]


_ADDRESS = TypeAdapter(HttpUrl)


def _reachable(url: str) -> str:
    """As it was written, if it names a host and a port that there can be. Raises ValueError."""
    _ADDRESS.validate_python(url)
    return url


class NewWebhook(Shape):
    """`events`: what to tell; what a schedule names it for is told in any case."""

    url: Annotated[str, Field(pattern=LINK, max_length=2000), AfterValidator(_reachable)]
    events: Annotated[tuple[EventName, ...], Field(max_length=20)] = ()
    description: Annotated[str, Field(max_length=500)] = ""
    reason: Reason = ""


class WebhookShape(Shape):
    """`secret` is there only in the answer that made it; with it the receiver checks X-Phoenix-Signature.

    That header is `t=UNIX,v1=HEX`; HEX is the HMAC-SHA256, by the secret, of `UNIX.BODY`. Refuse what is old.
    """

    id: str
    url: str
    events: list[str]
    description: str
    created_at: datetime
    created_by: str
    secret: str | None = None


class WebhookList(Shape):
    items: list[WebhookShape]
    next: str | None


class DeliveryShape(Shape):
    id: str
    webhook: str
    event: str
    state: Literal["PENDING", "DELIVERED", "FAILED"]
    attempts: int
    created_at: datetime
    next_at: datetime | None
    delivered_at: datetime | None
    status: int | None
    error: str | None


class DeliveryList(Shape):
    items: list[DeliveryShape]
    next: str | None


@router.get("/webhooks")
def list_webhooks(service: ServiceOf, limit: Limit = MOST_ITEMS, cursor: Cursor = None) -> WebhookList:
    """Oldest first."""
    with service.database.read() as session:
        query = select(Webhook).where(Webhook.deleted_at.is_(None))
        found, following = page(session, query, (Webhook.created_at, Webhook.id), limit=limit, cursor=cursor)
        return WebhookList(items=[_shape(hook) for hook in found], next=following)


@router.post("/webhooks", status_code=201, response_model=WebhookShape, openapi_extra=IDEMPOTENT)
def create_webhook(service: ServiceOf, caller: CallerOf, request: Request, body: NewWebhook) -> Response:
    """The answer holds the secret that signs its messages, this once."""
    with service.database.write() as session:

        def effect() -> Answer:
            hook = Webhook(
                id=store.new_id("webhook"),
                url=body.url,
                events={"names": sorted(set(body.events))},
                description=body.description,
                secret=webhooks.new_secret(),
                created_at=store.now(),
                created_by=caller.name,
            )
            session.add(hook)
            audit.record(session, caller, "webhook.create", hook.id, reason=body.reason, detail={"url": hook.url})
            shape = _shape(hook).model_copy(update={"secret": hook.secret})
            return Answer(status=201, body=shape, location="/api/v1/webhooks", secret="secret")

        return once(session, request, body, effect)


@router.delete("/webhooks/{webhook_id}", status_code=204)
def delete_webhook(
    service: ServiceOf, caller: CallerOf, webhook_id: Id, reason: Annotated[str, Query(max_length=2000)] = ""
) -> None:
    """Nothing is told to it any more; what was told stays on record."""
    with service.database.write() as session:
        hook = _existing(session, webhook_id)
        hook.deleted_at = store.now()
        audit.record(session, caller, "webhook.delete", hook.id, reason=reason, detail={"url": hook.url})


@router.post("/webhooks/{webhook_id}/test", status_code=202, response_model=DeliveryShape, openapi_extra=IDEMPOTENT)
def send_test(
    service: ServiceOf, caller: CallerOf, request: Request, webhook_id: Id, body: Why = NO_REASON
) -> Response:
    """Tell it something now, to see whether it hears. The body may be left out."""
    with service.database.write() as session:

        def effect() -> Answer:
            hook = _existing(session, webhook_id)
            delivery = webhooks.enqueue(session, hook, "test", {"by": caller.name, "reason": body.reason})
            return Answer(status=202, body=_delivery(delivery))

        return once(session, request, body, effect)


@router.get("/webhooks/{webhook_id}/deliveries")
def list_deliveries(service: ServiceOf, webhook_id: Id, limit: Limit = 50, cursor: Cursor = None) -> DeliveryList:
    """Newest first: what was told, how often it was tried, and what the receiver answered."""
    with service.database.read() as session:
        hook = _existing(session, webhook_id)
        query, order = select(Delivery).where(Delivery.webhook_id == hook.id), (Delivery.created_at, Delivery.id)
        found, following = page(session, query, order, limit=limit, cursor=cursor, newest_first=True)
        return DeliveryList(items=[_delivery(delivery) for delivery in found], next=following)


def _existing(session: Session, webhook_id: str) -> Webhook:
    hook = session.get(Webhook, webhook_id)
    if hook is None or hook.deleted_at is not None:
        raise not_found("webhook", webhook_id)
    return hook


def _shape(hook: Webhook) -> WebhookShape:
    return WebhookShape(
        id=hook.id,
        url=hook.url,
        events=list(hook.events.get("names", [])),
        description=hook.description,
        created_at=hook.created_at,
        created_by=hook.created_by,
    )


def _delivery(delivery: Delivery) -> DeliveryShape:
    return DeliveryShape.model_validate(
        {
            "id": delivery.id,
            "webhook": delivery.webhook_id,
            "event": delivery.event,
            "state": delivery.state,
            "attempts": delivery.attempts,
            "created_at": delivery.created_at,
            "next_at": delivery.next_at,
            "delivered_at": delivery.delivered_at,
            "status": delivery.status,
            "error": delivery.error,
        }
    )
