"""The page at /docs: every route of the OpenAPI document, on one page that needs nothing from elsewhere."""

import json
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

Json = Mapping[str, Any]

router = APIRouter()

# Nothing is loaded and nothing runs, so nothing else is allowed either
_POLICY = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
}


@router.get("/docs", response_class=HTMLResponse)
def show_docs(request: Request) -> HTMLResponse:
    schema = cast(Json, request.app.openapi())
    return HTMLResponse(render(schema, str(request.base_url).rstrip("/")), headers=_POLICY)


def render(schema: Json, address: str) -> str:
    """The whole page; `address` is where the reader reached us, for the curl lines."""
    info: Json = schema["info"]
    style = files("vitrine.api").joinpath("docs.css").read_text("utf-8")
    sections = "".join(_section(schema, tag, address) for tag in _tags(schema))
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(info["title"])} API</title>
<style>{style}</style>
<h1>{escape(info["title"])} <small>API {escape(info["version"])}</small></h1>
<p>{_prose(info["description"])}</p>
<p class="note">The same routes answer without <code>/api/v1</code>.
For tools: <a href="/openapi.json">openapi.json</a>.</p>
{sections}
</html>
"""


def _operations(schema: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def _tags(schema: Json) -> list[str]:
    return list(dict.fromkeys(operation["tags"][0] for _, _, operation in _operations(schema)))


def _section(schema: Json, tag: str, address: str) -> str:
    routes = [
        _route(schema, method, path, operation, address)
        for method, path, operation in _operations(schema)
        if operation["tags"][0] == tag
    ]
    return f"<h2>{escape(tag)}</h2>{''.join(routes)}"


def _route(schema: Json, method: str, path: str, operation: Json, address: str) -> str:
    return f"""<details id="{escape(operation["operationId"])}">
<summary><code class="method {method}">{method.upper()}</code> <code>{escape(path)}</code>
<span class="what">{escape(operation["summary"])}</span></summary>
<div class="inside"><p>{_prose(operation["description"])}</p>
{_parameters(operation)}
{_bodies(operation)}
<h3>Try it</h3><pre>{escape(_curl(schema, method, path, operation, address))}</pre>
{_answers(schema, operation)}
</div></details>
"""


def _parameters(operation: Json) -> str:
    rows = [_parameter(parameter) for parameter in operation.get("parameters", [])]
    return f"<h3>Parameters</h3><table>{''.join(rows)}</table>" if rows else ""


def _parameter(parameter: Json) -> str:
    limits = [
        f"{word} {parameter['schema'][name]}"
        for name, word in (("minimum", "from"), ("maximum", "to"), ("default", "default"))
        if parameter["schema"].get(name) not in (None, "", 2**63 - 1)
    ]
    text = _prose(parameter.get("description", "")) + (
        f" <span class=note>{', '.join(limits)}</span>" if limits else ""
    )
    return f"<tr><td><code>{escape(parameter['name'])}</code> <span class=note>{parameter['in']}</span><td>{text}"


def _bodies(operation: Json) -> str:
    content: Json = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    shown = [
        f"<h3>{escape(example['summary'])}</h3><pre>{escape(_pretty(example['value']))}</pre>"
        for example in content.get("examples", {}).values()
    ]
    return "".join(shown)


def _answers(schema: Json, operation: Json) -> str:
    rows = [
        f"<tr><td><code>{status}</code><td>{_prose(answer['description'])}{_shown(schema, answer)}"
        for status, answer in operation["responses"].items()
    ]
    return f"<h3>Answers</h3><table>{''.join(rows)}</table>"


def _shown(schema: Json, answer: Json) -> str:
    found = [example_of(schema, content) for content in answer.get("content", {}).values()]
    return "".join(f"<pre>{escape(_pretty(example))}</pre>" for example in found if example is not None)


def _curl(schema: Json, method: str, path: str, operation: Json, address: str) -> str:
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            example = (parameter.get("examples") or parameter["schema"]["examples"])[0]
            path = path.replace(f"{{{parameter['name']}}}", example)
    words = ["curl", *(["-X", method.upper()] if method != "get" else []), shlex.quote(address + path)]
    body = operation.get("requestBody")
    if body is not None and body.get("required"):
        example = example_of(schema, body["content"]["application/json"])
        words += ["-H", "'Content-Type: application/json'", "-d", shlex.quote(json.dumps(example, ensure_ascii=False))]
    return " ".join(words)


def example_of(schema: Json, content: Json) -> Any:
    """The example of a body: its own, else the one of its model; None when there is neither."""
    if "example" in content:
        return content["example"]
    if content.get("examples"):
        return next(iter(content["examples"].values()))["value"]
    return _model_example(schema, content.get("schema", {}))


def _model_example(schema: Json, model: Json) -> Any:
    for candidate in (model, *model.get("anyOf", ())):
        resolved = (
            schema["components"]["schemas"][candidate["$ref"].rsplit("/", 1)[1]] if "$ref" in candidate else candidate
        )
        if resolved.get("examples"):
            return resolved["examples"][0]
    return None


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _prose(text: str) -> str:
    """Escaped, with `words` between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
