"""The server's app in this process, over a replica that is up to date: quick to make, quick to ask."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from opentab.replica.follower import Follower
from opentab.runtime.config import Home
from opentab.server.app import build


class App:
    """Asks an app as a client would."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def client(self, **options: Any) -> httpx.AsyncClient:
        """For several questions at once."""
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=True)
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())


def catch_up(home: Home) -> None:
    """Bring a home's replica up to date."""
    follower = Follower(home)
    while follower.step() is not None:
        pass
    follower.close()


@contextmanager
def app_of(home: Home) -> Iterator[App]:
    catch_up(home)
    app = build(home)
    yield App(app)
    asyncio.run(_ended(app))


async def _ended(app: Any) -> None:
    """Start and stop an app as a server does: it lets go of the replica."""
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> dict[str, str]:
        return messages.pop(0)

    async def send(_: dict[str, Any]) -> None: ...

    await app({"type": "lifespan", "state": {}}, receive, send)
