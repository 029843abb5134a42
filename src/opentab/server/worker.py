"""One HTTP worker, a process of its own: `python -m opentab.server.worker`, started by `opentab serve`.

It answers at a socket that its server listens on; several of them share it.
"""

from __future__ import annotations

import gc
import logging
import resource
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import uvicorn

from opentab.core.errors import OpentabError
from opentab.runtime import config, logs
from opentab.runtime.parent import end_with_parent
from opentab.server.app import build
from opentab.server.protocol import Protocol

STOP_SECONDS_MAX = 5  # then requests that are not done are cut off
KEEP_ALIVE_SECONDS = 75


def work(home: Path, listener: socket.socket, cert: str | None, key: str | None) -> None:
    """Answer until a signal comes."""
    settings = config.load(home)
    logs.set_up(settings, "server")
    app = build(settings)
    # What is here now stays; there is no need to go through all of it for every few thousand answers.
    gc.collect()
    gc.freeze()
    options = uvicorn.Config(
        cast("Any", app),
        http=Protocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        interface="asgi3",
        ssl_certfile=cert,
        ssl_keyfile=key,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS_MAX,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
    )
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    uvicorn.Server(options).run(sockets=[listener])


def main() -> None:
    """Arguments: the home, the server's process, the socket's number, and a certificate and its key for TLS."""
    home, parent, number, *files = sys.argv[1:]
    # Without it a worker would go on listening, and no other server could take its place.
    end_with_parent(int(parent))
    cert, key = files or (None, None)
    # A connection is an open file. A thousand, which is usual, are soon taken by callers who say nothing.
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # macOS has no hard limit, and does not take that
        resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    try:
        work(Path(home), socket.socket(fileno=int(number)), cert, key)
    except KeyboardInterrupt:
        return  # uvicorn has ended in peace, and says again what it was told
    except OpentabError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
