"""Comparisons and histories as files: for a report, for a server that runs tests, for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response

from chaos.compare import present
from chaos.compare.samples import METRICS, TOTAL
from service.comparison_shapes import HistoryShape
from service.routes.common import PROBLEMS, ServiceOf
from service.routes.comparisons import Revision, compared
from service.routes.history import Asked, Branch, Fingerprint, KnownOf, Name, history_json

router = APIRouter(tags=["files"], responses=PROBLEMS)

OF_ROW: Final = (
    "scenario", "fault", "metric", "gates", "verdict", "ratio", "low", "high", "p", "p_adjusted", "needs", "reason",
)  # fmt: skip
OF_GROUP: Final = ("n", "median", "low", "high", "not_recovered", "succeeded", "trials", "sessions")


class Form(StrEnum):
    MARKDOWN = "markdown"
    JUNIT = "junit"
    CSV = "csv"


def _rows(document: Mapping[str, Any]) -> str:
    sides = [(side, name) for side in ("base", "head") for name in OF_GROUP]
    head = [*OF_ROW, *(f"{side}_{name}" for side, name in sides)]
    rows = document["rows"]
    return _csv(head, ([*(row[name] for name in OF_ROW), *(row[side][name] for side, name in sides)] for row in rows))


# How each is written, what it is called by servers, and the end of its name.
FORMS: Final[Mapping[Form, tuple[Callable[[dict[str, Any]], str], str, str]]] = {
    Form.MARKDOWN: (present.markdown, "text/markdown", "md"),
    Form.JUNIT: (present.junit, "application/xml", "xml"),
    Form.CSV: (_rows, "text/csv", "csv"),
}


def _file(*kinds: str) -> dict[int | str, dict[str, Any]]:
    text = {"schema": {"type": "string"}}
    return {200: {"content": dict.fromkeys(kinds, text), "description": "The file."}}


@router.get("/comparisons/file", response_class=Response, responses=_file(*(kind for _, kind, _ in FORMS.values())))
def download_comparison(
    known: KnownOf,
    base: Revision,
    head: Revision,
    form: Form,
    scenario: Annotated[str | None, Query(max_length=64)] = None,
) -> Response:
    """The comparison as `phoenix compare` writes it with --markdown and --junit, or its rows as CSV."""
    write, kind, end = FORMS[form]
    return _answer(write(compared(known, base, head, scenario).to_json()), kind, f"compare.{end}")


@router.get("/history/file", response_class=Response, responses=_file("text/csv"))
def download_history(
    service: ServiceOf,
    known: KnownOf,
    scenario: Name,
    metric: Annotated[list[str], Query(max_length=len(METRICS), default_factory=lambda: [TOTAL])],
    fault: Name = "",
    fingerprint: Fingerprint = None,
    branch: Branch = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Newest points")] = 1000,
) -> Response:
    """Metrics of a scenario as CSV: a row a trial of each, in seconds; empty where it did not recover."""
    histories = [
        HistoryShape.model_validate_json(
            history_json(service, known, Asked(scenario, one, fault, fingerprint, branch, limit))
        )
        for one in metric
    ]
    head = ("at", "session", "code", "fingerprint", "scenario", "fault", "metric", "seconds")
    rows = (
        (point.at.isoformat(), point.session, point.code, point.fingerprint, scenario, found.fault, found.metric, value)
        for found in histories
        for point in found.points
        for value in point.values
    )
    return _answer(_csv(head, rows), "text/csv", "history.csv")


def _csv(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def _answer(text: str, kind: str, name: str) -> Response:
    return Response(text, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})
