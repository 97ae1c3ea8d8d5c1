"""Refusals: turns whatever a handler raises into a problem for the client."""

from __future__ import annotations

import logging

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from coil.errors import CoilError, IndexLocked, InputError, SearchTimeout
from coil.service.mistakes import problem_of_mistakes
from coil.service.problems import MEDIA_TYPE, Problem, problem_of, unreadable_body

_log = logging.getLogger("coil.service")


def _tell(request: Request, problem: Problem) -> Response:
    request.state.note["problem"] = problem.kind
    return JSONResponse(
        problem.to_json(request.state.request_id), problem.status_code, problem.headers, media_type=MEDIA_TYPE
    )


async def tell_coil_error(request: Request, error: Exception) -> Response:
    """An error of the library."""
    assert isinstance(error, CoilError)
    if not isinstance(error, InputError | SearchTimeout):  # the client only gets a general message
        extra = {"request_id": request.state.request_id, "reason": error.reason, "remedy": error.remedy}
        # Another process writing is not a fault to repair.
        _log.log(logging.INFO if isinstance(error, IndexLocked) else logging.ERROR, "refused", extra=extra)
    return _tell(request, problem_of(error))


async def tell_bad_request(request: Request, error: Exception) -> Response:
    """Invalid values."""
    assert isinstance(error, RequestValidationError)
    route: APIRoute = request.scope["route"]
    bodies = [parameter.field_info.annotation for parameter in route.dependant.body_params]
    known = [key for body in bodies if body is not None for key in body.model_fields]
    return _tell(request, problem_of_mistakes(error.errors(), known))


async def tell_http_error(request: Request, error: Exception) -> Response:
    """A problem of ours, or what Starlette and FastAPI raise."""
    assert isinstance(error, HTTPException)
    if isinstance(error, Problem):
        return _tell(request, error)
    if error.status_code == 400:  # a body that json cannot parse: bad bytes, too deep, a huge number
        return _tell(request, unreadable_body())
    kind = {404: "unknown_address", 405: "wrong_method"}.get(error.status_code, "bad_request")
    headers = dict(error.headers) if error.headers else None
    if headers is not None and "Allow" in headers:  # what Starlette says is of one of several routes
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    remedy = "see /docs for endpoints and parameters"
    return _tell(request, Problem(error.status_code, kind, str(error.detail), remedy, headers))


def _methods(request: Request) -> set[str]:
    """The methods allowed at an address."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] != Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return found | {"HEAD"} if "GET" in found else found  # the gate answers HEAD wherever GET is answered
