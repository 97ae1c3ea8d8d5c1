"""The page at /docs: every endpoint of the HTTP interface, generated from the OpenAPI document, without
scripts."""

from __future__ import annotations

from html import escape
from typing import Any


def render_api_page(openapi: dict[str, Any]) -> str:
    """One section per address."""
    sections = [
        _operation(path, method, operation, openapi)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    title = f"{escape(openapi['info']['title'])} over HTTP"
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title></head>
<body><main><h1>{title}</h1>
<p>{escape(openapi["info"]["description"])} Machine-readable version: <a href="openapi.json">openapi.json</a>.
<a href="./">Search page</a>.</p>
{"".join(sections)}</main></body></html>
"""


def _operation(path: str, method: str, operation: dict[str, Any], openapi: dict[str, Any]) -> str:
    rows = [
        _row(p["name"], p["in"], p.get("required", False), p["schema"], p.get("description", ""))
        for p in operation.get("parameters", [])
    ]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        forms = content["schema"].get("anyOf", [content["schema"]])
        for schema in [_resolved(form, openapi) for form in forms]:
            place = "body" if len(forms) == 1 else f"body ({schema['title']})"
            required = schema.get("required", [])
            rows += [
                _row(name, place, name in required, value, value.get("description", ""))
                for name, value in schema.get("properties", {}).items()
            ] or [_row(kind, place, True, schema, "")]
    table = (
        "<table><thead><tr><th>name<th>in<th>type<th>default<th>description</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
        if rows
        else ""
    )
    token = "<p>Requires the server's token.</p>" if operation.get("security") else ""
    text = escape(operation.get("description", operation["summary"]))
    name = f"{method.upper()} {escape(path)}"
    return f"<section><h2><code>{name}</code></h2><p>{text}</p>{token}{table}</section>\n"


def _row(name: str, place: str, required: bool, schema: dict[str, Any], text: str) -> str:
    default = "required" if required else escape(str(schema.get("default", "none")))
    return (
        f"<tr><td><code>{escape(name)}</code><td>{place}<td>{escape(_type(schema))}"
        f"<td>{default}<td>{escape(text)}</tr>"
    )


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    inner = f" of {_type(schema['items'])}s" if isinstance(schema.get("items"), dict) else ""
    return f"{schema.get('type', 'value')}{inner}"


def _resolved(schema: dict[str, Any], openapi: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rsplit("/", maxsplit=1)[-1]
    found: dict[str, Any] = openapi["components"]["schemas"][name]
    return found
