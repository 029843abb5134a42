"""The HTTP API over a replica, put together: endpoints, and around them what every request passes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from fastapi import FastAPI

from opentab import __version__
from opentab.replica.reader import Reader
from opentab.runtime.config import Home
from opentab.server.common_files import DIRECTORY_VARIABLE, STOPPING_NAME, alive_path
from opentab.server.event_lookup import Book
from opentab.server.fast_read import FastRead
from opentab.server.feed import Feed
from opentab.server.guard import LoopbackOnly, TokensOnly
from opentab.server.intake import Intake
from opentab.server.limits import InTime, SmallOnly
from opentab.server.metrics import Counters, Timed
from opentab.server.paths import App, RawPaths
from opentab.server.problem import install
from opentab.server.queries import Desk
from opentab.server.revocations import Revocations
from opentab.server.routes import (
    batches,
    customers,
    events,
    health,
    invoices,
    page,
    periods,
    rejections,
    session,
    stream,
    types,
)
from opentab.server.schemas import install_document
from opentab.server.session import CookieTaken
from opentab.server.tokens import Gate, read_key

ALIVE_SECONDS = 1.0
DESCRIPTION = "Running totals, invoices and live streams of one opentab home. Every answer says how fresh it is."


def build(home: Home) -> App:
    """All that answers from the home's replica.

    From the outside in: the read that everyone makes, how large a request may be, who may ask, how long it may take,
    the clock, the endpoints.
    """
    reader, intake, counters = Reader(home.replica_path), Intake(home), Counters()
    desk, book = Desk(home, reader), Book(home)
    key, revocations = read_key(home), Revocations(home.ledger, home.revoked_path)
    gate = Gate(key, revocations) if key is not None else None
    if gate is not None:
        revocations.start()

    counted = os.environ.get(DIRECTORY_VARIABLE)

    @asynccontextmanager
    async def until_closed(_: FastAPI) -> AsyncIterator[None]:
        alive = asyncio.create_task(_say_alive(Path(counted))) if counted else None
        yield
        intake.close()
        book.close()
        revocations.close()
        reader.close()
        if alive is not None:
            alive.cancel()

    api = FastAPI(
        title="opentab",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=until_closed,
        redirect_slashes=False,
    )
    install(api)
    for routes in (customers, invoices, types, periods, batches, rejections):
        routes.add_routes(api, desk)
    stopping = Path(counted) / STOPPING_NAME if counted else None
    feed = Feed(reader, counters.streams, per_token_max=home["server.streams_max"], stopping=stopping)
    stream.add_routes(api, desk, feed)
    events.add_routes(api, desk, intake, book)
    health.add_routes(api, desk, intake, counters)
    session.add_routes(api, home, gate)
    page.add_routes(api)
    install_document(api)
    seconds_max = home["server.request_timeout"].total_seconds()
    inner = InTime(RawPaths(Timed(api, counters)), seconds_max=seconds_max)
    guard = LoopbackOnly(inner) if gate is None else TokensOnly(inner, gate)
    return FastRead(SmallOnly(CookieTaken(guard)), desk, guard, counters)


async def _say_alive(directory: Path) -> None:
    """As long as the loop turns: who does not say so for long is replaced."""
    while True:
        with suppress(OSError):
            alive_path(directory, os.getpid()).touch()
        await asyncio.sleep(ALIVE_SECONDS)
