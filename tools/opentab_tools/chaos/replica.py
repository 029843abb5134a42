"""One of the stage's replicas: a home of its own that follows the same ledger, and its server."""

from __future__ import annotations

import http.client
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from opentab.runtime.config import load
from opentab_tools.servers.daemon import Daemon
from opentab_tools.servers.free_port import free_port

START_SECONDS_MAX = 90
ANSWER_SECONDS_MAX = 10.0
GARBAGE = b"not a page of LMDB " * 4096


class Replica:
    """A server that answers from its own copy."""

    def __init__(self, path: Path, ledger: str) -> None:
        """With the ledger's settings, as they stand in `opentab.toml`."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "opentab.toml").write_text(ledger, encoding="utf-8")
        self.home = load(path)
        self.port = free_port()
        words = ["serve", "--home", str(path), "--port", str(self.port), "--workers", "1"]
        self.daemon = Daemon(path.name, [sys.executable, "-m", "opentab.cli", *words], self.home.logs_path)

    def start(self) -> None:
        """Start it; returns when it answers."""
        self.daemon.start()
        self.daemon.wait_until(lambda: self.position() is not None, seconds_max=START_SECONDS_MAX)

    def destroy_copy(self) -> None:
        """Write garbage over its LMDB, as a disk may do."""
        for path in self.home.replica_path.rglob("data.mdb"):
            with path.open("r+b") as file:
                file.write(GARBAGE)
                file.truncate()

    def position(self) -> int | None:
        """The batch that its answers stand for; None while there are none."""
        try:
            _, answer = self.ask("/readyz")
        except (OSError, http.client.HTTPException, msgspec.MsgspecError):
            return None
        return int(answer.get("position", 0))

    def ask(self, path: str) -> tuple[int, Any]:
        """The status and the JSON of one answer."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS_MAX)) as line:
            line.request("GET", path)
            with line.getresponse() as response:
                return response.status, msgspec.json.decode(response.read())
