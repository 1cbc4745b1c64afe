"""Every error of the REST API, as an RFC 9457 problem document (`application/problem+json`).

The one table of statuses: what `chaos` refuses becomes 422, what is not there 404, what does not
fit the state of a run 409.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from chaos.errors import ChaosError, InvalidFault, InvalidScenario, UnknownFaultKind
from service.patterns import IN_WORDS

MEDIA_TYPE = "application/problem+json"

log = logging.getLogger("phoenix.service")


class Problem(Exception):
    """An error of the caller; `code` names it for programs, `detail` says what to do."""

    def __init__(
        self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: object
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers
        self.more = more


def not_found(what: str, name: str) -> Problem:
    return Problem(404, "not-found", f"there is no {what} {name!r}")


def problem_response(
    status: int,
    detail: str,
    *,
    code: str = "about:blank",
    instance: str = "",
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, object] | None = None,
) -> JSONResponse:
    body: dict[str, object] = {
        "type": code if code == "about:blank" else f"urn:phoenix:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": instance,
        **(more or {}),
    }
    return JSONResponse(body, status_code=status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


def of_chaos(error: ChaosError) -> Problem:
    """What `chaos` refused, with the field at fault."""
    if isinstance(error, UnknownFaultKind):
        return Problem(422, "unknown-fault-kind", str(error), errors=[_field(error.field, error.reason)])
    if isinstance(error, InvalidFault):
        return Problem(422, "invalid-fault", str(error), errors=[_field(error.field, error.reason)])
    if isinstance(error, InvalidScenario):
        return Problem(422, "invalid-scenario", str(error), errors=[_field(error.field, error.reason)])
    return Problem(422, "refused", str(error))


def install(app: FastAPI) -> None:
    """Give every error of `app` the one shape."""

    async def problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return problem_response(
            error.status,
            error.detail,
            code=error.code,
            instance=request.url.path,
            headers=error.headers,
            more=error.more,
        )

    async def chaos_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ChaosError)
        return await problem(request, of_chaos(error))

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, RecursionError):
            return await too_deep(request, error)
        if isinstance(error.__cause__, UnicodeDecodeError):
            detail = f"the body is not UTF-8: {error.__cause__.reason} at byte {error.__cause__.start}"
            return problem_response(422, detail, code="invalid-request", instance=request.url.path)
        if isinstance(error.__cause__, ValueError):  # Python reads no longer ones
            detail = f"a number in the body has more than the {sys.get_int_max_str_digits()} digits that can be read"
            return problem_response(422, detail, code="invalid-request", instance=request.url.path)
        if error.status_code < 400 or error.status_code == 304:
            return Response(status_code=error.status_code, headers=error.headers)
        detail = f"there is nothing at {request.url.path}" if error.status_code == 404 else str(error.detail)
        return problem_response(error.status_code, detail, instance=request.url.path, headers=error.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        errors = [_validation(item, error.body) for item in error.errors()]
        detail = "; ".join(
            f"{item['field']}: {item['message']}" if item["field"] else item["message"] for item in errors
        )
        return problem_response(422, detail, code="invalid-request", instance=request.url.path, more={"errors": errors})

    async def too_deep(request: Request, error: Exception) -> Response:
        detail = "the body is nested too deeply to be read"
        return problem_response(422, detail, code="invalid-request", instance=request.url.path)

    async def no_database(request: Request, error: Exception) -> Response:
        assert isinstance(error, OperationalError)
        log.error("the database failed on %s: %s", request.url.path, error.orig)  # who operates it needs no traceback
        log.debug("the database failed", exc_info=error)
        detail = f"the database does not do this now: {error.orig}; try again when it can"
        return problem_response(503, detail, code="database-down", instance=request.url.path)

    async def unexpected(request: Request, error: Exception) -> Response:
        # The server middleware re-raises after this answer, so the log has the traceback; the caller never sees it.
        detail = f"the service failed on this request ({type(error).__name__}); its log has the reason"
        return problem_response(500, detail, code="internal", instance=request.url.path)

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(ChaosError, chaos_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(RecursionError, too_deep)
    app.add_exception_handler(OperationalError, no_database)
    app.add_exception_handler(Exception, unexpected)


def _field(field: str, message: str) -> dict[str, str]:
    return {"field": field, "message": message}


def _validation(item: Any, body: object) -> dict[str, str]:
    """One mistake with its field; of a whole body that is missing or no JSON, what to send in its place."""
    location: Sequence[object] = item.get("loc", ())
    if item.get("type") == "json_invalid" and isinstance(body, str):
        at = int(str(location[1]))
        line, column = body.count("\n", 0, at) + 1, at - body.rfind("\n", 0, at)
        return _field("body", f"not valid JSON at line {line}, column {column}: {item['ctx']['error']}")
    if location == ("body",):
        return _field(
            "body", "is missing: send a JSON object" if item["type"] == "missing" else "must be a JSON object"
        )
    said = IN_WORDS.get(item.get("ctx", {}).get("pattern"), str(item.get("msg", "")))
    named = [part for part in location[1:] if location[0] == "body" or isinstance(part, str)]  # a query has no lists
    return _field(".".join(map(str, named)), said.removeprefix("Value error, "))
