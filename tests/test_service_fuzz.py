"""Whatever a client sends, the server never fails: requests made from its own OpenAPI document."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from coil.service.app import NDJSON
from coil.service.limits import ServiceLimits, ServiceOptions
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, Running, running
from tests.test_service import WRITE, build

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.checks import (  # noqa: E402
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = 30  # of each address


@schemathesis.serializer(NDJSON)
def one_line(_: object, value: object) -> bytes:
    """A document as a body, or whatever else was made up in its place."""
    return value if isinstance(value, bytes) else json.dumps(value, default=str).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = build(tmp_path_factory.mktemp("served") / "notes.coil", 20)
    options = ServiceOptions(limits=ServiceLimits(upload_bytes=1 << 20), token=TOKEN)
    with running([folder], options, HashEncoder()) as found:
        yield found
        text = found.client.get("/metrics").text
        assert 'status="500"' not in text
        assert 'status="200"' in text


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_no_request_makes_the_server_fail(server: Running, mode: schemathesis.GenerationMode) -> None:
    """Requests as they should be, and requests as they should not."""
    schema = schemathesis.openapi.from_url(f"{server.url}openapi.json")
    tried = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        tried.add((operation.method, operation.path))

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        def try_it(case: schemathesis.Case) -> None:
            if "name" in case.path_parameters:  # or nearly all would end at an index that is not there
                case.path_parameters["name"] = "notes"
            response = case.call(headers=WRITE)
            assert response.status_code < 500, response.text
            case.validate_response(response, checks=CHECKS)

        with contextlib.suppress(Unsatisfiable):  # nothing about a request without parameters can be wrong
            try_it()
    paths = server.client.get("/openapi.json").json()["paths"]
    assert tried == {(method, path) for path, methods in paths.items() for method in methods}
    if mode is schemathesis.GenerationMode.POSITIVE:  # some came far enough to be answered, not only refused
        assert 'coil_queries_total{index="notes"}' in server.client.get("/metrics").text
