"""A real S3-compatible server on loopback: moto's, from PyPI. It keeps everything in memory, so it is never killed."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import httpx

from opentab.errors import MachineError
from opentab.lab.daemon import Daemon
from opentab.lab.free_port import free_port

START_SECONDS_MAX = 90
REGION = "us-east-1"
BUCKET = "opentab"


class ObjectStore:
    """A server with one bucket, which can be made to stand still."""

    def __init__(self, directory: Path) -> None:
        if find_spec("moto") is None:
            raise MachineError("moto's server is missing", hint="install opentab[lab]")
        self.port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.daemon = Daemon("object-store", command, directory)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> str:
        """What stands in `opentab.toml` of a home whose ledger it holds."""
        options = {
            "aws_endpoint_url": self.url,
            "aws_region": REGION,
            "aws_access_key_id": "opentab",
            "aws_secret_access_key": "opentab",
            "aws_allow_http": "true",
        }
        lines = [f'uri = "s3://{BUCKET}/ledger"', "", "[ledger.storage]"]
        return "\n".join([*lines, *(f'{name} = "{value}"' for name, value in options.items())])

    def start(self) -> None:
        """Start it; returns when it has its bucket."""
        if not self.daemon.runs:
            self.daemon.start()
            self.daemon.wait_until(self._has_bucket, seconds_max=START_SECONDS_MAX)

    def stand_still(self) -> None:
        """SIGSTOP: it takes connections and answers nobody."""
        self.daemon.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.daemon.signal(signal.SIGCONT)

    def _has_bucket(self) -> bool:
        try:
            return httpx.put(f"{self.url}/{BUCKET}", timeout=5).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False
