"""What Prometheus asks for: how the service answers, and what the database says at that moment."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import halts, queue, schedules, store
from service.control_tables import Delivery
from service.database import Database
from service.settings import Settings
from service.states import RunState
from service.tables import Run, Trial
from service.webhooks import DELIVERED, FAILED, PENDING

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# A page that takes longer than a tenth of a second is worth a look.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """One registry for each service, so that two in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.requests = Counter(
            "phoenix_http_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "phoenix_http_request_seconds",
            "Seconds from a request to the head of its answer.",
            ("method", "route"),
            buckets=BUCKETS,
            registry=self.registry,
        )

    def observe(self, database: Database, settings: Settings) -> None:
        """From now on the database is asked at each scrape."""
        self.registry.register(_OfDatabase(database, settings))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Measured:
    """ASGI middleware. Labels are templates of routes, never paths, of which there are as many as runs."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()

        async def send_measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "none")
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self.metrics.requests.labels(method, route, str(message["status"])).inc()
                self.metrics.seconds.labels(method, route).observe(time.perf_counter() - began)
            await send(message)

        await self.app(scope, receive, send_measured)


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class _OfDatabase(Collector):
    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def collect(self) -> Iterable[Metric]:
        with self._database.read() as session:
            return list(self._families(session))

    def describe(self) -> Iterable[Metric]:
        return ()

    def _families(self, session: Session) -> Iterator[Metric]:
        yield _counted("phoenix_runs", "Runs by state.", "state", _by_state(session))
        yield _counted("phoenix_trials_ended", "Trials that ended, by verdict.", "verdict", _by_verdict(session))
        yield _counted("phoenix_queue", "Trials that wait, and that run.", "state", queue.depth(session))
        alive = timedelta(seconds=self._settings.lease_s)
        beats = [store.now() - service.heartbeat_at <= alive for service in queue.services(session)]
        yield GaugeMetricFamily("phoenix_services_alive", "Services heard of within their lease.", sum(beats))
        yield GaugeMetricFamily("phoenix_halted", "1 while a halt is in force.", int(halts.active(session) is not None))
        yield GaugeMetricFamily("phoenix_faults_active", "Faults that last and were not taken back.", _lasting(session))
        stale = [schedules.is_stale(session, schedule) for schedule in schedules.all_schedules(session)]
        yield GaugeMetricFamily("phoenix_schedules_stale", "Schedules of which no run ended for too long.", sum(stale))
        yield _counted("phoenix_messages", "Messages to webhooks by state.", "state", _messages(session))


def _counted(name: str, text: str, label: str, counts: Mapping[Any, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for value, number in counts.items():
        family.add_metric((str(value),), number)
    return family


def _by_state(session: Session) -> dict[str, int]:
    found = session.execute(select(Run.state, func.count()).group_by(Run.state))
    return {**dict.fromkeys((str(state) for state in RunState), 0), **{str(row[0]): row[1] for row in found}}


def _by_verdict(session: Session) -> dict[str, int]:
    query = select(Trial.verdict, func.count()).where(Trial.verdict.is_not(None)).group_by(Trial.verdict)
    return {**dict.fromkeys(("PASS", "FAIL", "UNKNOWN"), 0), **{str(row[0]): row[1] for row in session.execute(query)}}


def _messages(session: Session) -> dict[str, int]:
    query = select(Delivery.state, func.count()).group_by(Delivery.state)
    states = dict.fromkeys((PENDING, DELIVERED, FAILED), 0)
    return {**states, **{str(row[0]): row[1] for row in session.execute(query)}}


def _lasting(session: Session) -> int:
    return len(halts.reach(session).reverts)
