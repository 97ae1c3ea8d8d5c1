"""The OpenAPI document: FastAPI's, with our error schema and the lines of an upload."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from coil.service.problems import MEDIA_TYPE
from coil.service.schemas import DocumentIn, ExactDocumentIn, ProblemOut


def describe_api(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with our error schema instead of its own."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = made["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["ProblemOut"] = ProblemOut.model_json_schema()
        schemas["DocumentIn"] = DocumentIn.model_json_schema()
        schemas["ExactDocumentIn"] = ExactDocumentIn.model_json_schema()
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        problem = {
            "description": "An error",
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemOut"}}},
        }
        for path, methods in made["paths"].items():
            for method, operation in methods.items():
                operation["responses"].pop("422", None)
                operation["responses"]["default"] = problem
                if "/documents" in path and method != "get":
                    operation["security"] = [{"token": []}]
        app.openapi_schema = made
    return app.openapi_schema
