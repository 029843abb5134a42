"""What operations answer, for the OpenAPI document: the structs that answers are made of, and problems."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
from fastapi import FastAPI

from opentab.api import answers

REF = "#/components/schemas/{name}"
PROBLEM = {
    "title": "Problem",
    "description": "The one shape of all errors (RFC 9457); some say more.",
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string", "examples": ["Not Found"]},
        "status": {"type": "integer", "examples": [404]},
        "detail": {"type": "string", "examples": ["nothing was billed there"]},
    },
    "required": ["type", "title", "status", "detail"],
}

Responses = dict[int | str, dict[str, Any]]


def install_document(api: FastAPI) -> None:
    """Let an app's OpenAPI document show the structs that its answers are made of."""

    def document() -> dict[str, Any]:
        if api.openapi_schema is None:
            found = FastAPI.openapi(api)
            found.setdefault("components", {}).setdefault("schemas", {}).update(_components())
        assert api.openapi_schema is not None
        return api.openapi_schema

    api.openapi = document  # type: ignore[method-assign]


def _components() -> dict[str, Any]:
    kinds = [kind for _, kind in inspect.getmembers(answers, inspect.isclass) if kind.__module__ == answers.__name__]
    _, found = msgspec.json.schema_components(kinds, ref_template=REF)
    # Nothing else is ever sent, and tests hold answers to it; a client takes what a later server adds.
    return {**{name: {**shape, "additionalProperties": False} for name, shape in found.items()}, "Problem": PROBLEM}


def sends(kind: type[msgspec.Struct], status: int = 200, description: str = "Successful Response") -> Responses:
    """What an operation says of an answer."""
    schema = {"$ref": REF.format(name=kind.__name__)}
    return {status: {"description": description, "content": {"application/json": {"schema": schema}}}}


def _problems(**reasons: str) -> Responses:
    schema = {"$ref": REF.format(name="Problem")}
    return {
        int(status.removeprefix("_")): {
            "description": reason,
            "content": {"application/problem+json": {"schema": schema}},
        }
        for status, reason in reasons.items()
    }


PROBLEM_503 = _problems(_503="not ready, and why")
READY_PROBLEMS = _problems(_422="a parameter is wrong", _503="not ready, and why")
ANSWER_PROBLEMS: Responses = {
    304: {"description": "you have this answer already"},
    **_problems(
        _401="a token is needed",
        _403="this token may not",
        _404="nothing was billed there",
        _422="a parameter is wrong",
        _429="too many of your questions wait for the ledger",
        _503="the replica is being made, too many questions wait for the ledger, or the answer is older than asked for",
    ),
}
RECEIPT_PROBLEMS = _problems(_404="no event with this id is known")
INVOICE_FORMS: Responses = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}}, "text/html": {"schema": {"type": "string"}}}},
    **_problems(_406="there is no such form of an invoice"),
}
STREAM_ANSWERS: Responses = {
    200: {"description": "server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
    **_problems(
        _401="a token is needed", _403="this token may not", _422="a parameter is wrong", _429="too many streams",
        _503="the replica is being made",
    ),
}  # fmt: skip


def answer(kind: type[msgspec.Struct], more: Responses | None = None) -> Responses:
    """What an operation that asks a replica says of its answers."""
    found = {**sends(kind), **ANSWER_PROBLEMS}
    for status, other in (more or {}).items():
        known = found.get(status, {})
        found[status] = {**known, **other, "content": {**known.get("content", {}), **other["content"]}}
    return found


SESSION_PROBLEMS = _problems(
    _400="the body is not JSON", _401="the token is no good", _404="no token is needed", _413="too large a body",
    _415="not JSON", _503="not ready, and why",
)  # fmt: skip
SESSION_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object", "required": ["token"], "properties": {"token": {"type": "string"}}}
            }
        },
    }
}
EVENT_PROBLEMS = _problems(
    _400="the body is not JSON",
    _401="a token is needed",
    _403="this token may not",
    _408="the body came too slowly",
    _413="too many events, or too large a body",
    _415="not one of the media types",
    _422="none of the events can be taken",
    _429="the pipeline is too far behind, or your requests are too large together: later",
    _503="the log cannot take more: later",
)
