"""/, /management, /operations and /events: the page. One shell for all; what it shows, its scripts ask for."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Header, Response

from opentab.server.problem import Problem
from opentab.server.webfiles import SHELL, WebFile, web_files

VIEWS = ("/", "/management", "/operations", "/events")

Seen = Annotated[str | None, Header(alias="if-none-match")]


def add_routes(api: FastAPI) -> None:
    files = web_files()

    def shell(seen: Seen = None) -> Response:
        """The page."""
        return _sent(files[SHELL], seen)

    for view in VIEWS:
        api.get(view, include_in_schema=False)(shell)

    @api.get("/web/{name}", include_in_schema=False)
    def web(name: str, seen: Seen = None) -> Response:
        """A file of the page."""
        if name not in files:
            raise Problem(404, "there is no such file")
        return _sent(files[name], seen)


def _sent(file: WebFile, seen: str | None) -> Response:
    if seen is not None and file.headers["etag"] in {tag.strip().removeprefix("W/") for tag in seen.split(",")}:
        return Response(status_code=304, headers=file.headers)
    return Response(file.body, headers=file.headers)
