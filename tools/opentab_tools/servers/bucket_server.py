"""A store that speaks S3, as a process on this machine: moto's server. What it holds is gone with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx

from opentab.core.errors import MachineError
from opentab.runtime.parent import end_with_parent
from opentab_tools.servers.free_port import free_port

START_SECONDS_MAX = 60
BUCKET = "opentab"
KEY_ID, SECRET = "bucket-server-key-id", "bucket-server-secret"


class BucketServer:
    """A running store with one empty bucket."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, os.getpid()),  # noqa: PLW1509  (system calls alone, no lock)
            )
        self._wait(log)

    def settings(self, prefix: str = "ledger", endpoint: str | None = None) -> str:
        """What a home's opentab.toml says to have its ledger there."""
        return (
            f'[ledger]\nuri = "s3://{BUCKET}/{prefix}"\n[ledger.storage]\n'
            f'aws_endpoint_url = "{endpoint or self.endpoint}"\n'
            f'aws_allow_http = true\naws_access_key_id = "{KEY_ID}"\naws_secret_access_key = "{SECRET}"\n'
        )

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it answer nothing for a while: what is sent to it waits."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def _wait(self, log: Path) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                httpx.put(f"{self.endpoint}/{BUCKET}", timeout=5).raise_for_status()
                return
            except httpx.TransportError:
                time.sleep(0.1)
        self.stop()
        raise MachineError("moto's server did not start", hint=f"{log} says why; make setup installs it")
