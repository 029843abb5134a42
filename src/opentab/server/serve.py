"""`opentab serve`: one follower that writes the replica, and HTTP workers that share it."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentab.config import Home, is_loopback
from opentab.errors import ConfigError, InputError
from opentab.server.asgi_name import DIRECTORY_VARIABLE, HOME_VARIABLE, STOPPING_NAME, TARGET
from opentab.server.tokens import read_key

RESTART_SECONDS = 1.0
RESTART_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 5  # then requests that are not done are cut off
HEADERS_BYTES_MAX = 64 * 1024  # beyond this a connection is not even read


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate chain and its private key."""

    cert: Path
    key: Path


def serve(home: Home, *, host: str, port: int, workers: int, tls: Tls | None, say: Callable[[str], None]) -> None:
    """Answer until a signal comes."""
    from granian import Granian
    from granian.constants import Interfaces, Loops
    from granian.http import HTTP1Settings
    from granian.log import LogLevels

    check_address(host, has_key=read_key(home) is not None)
    if tls is not None:
        check_tls(tls)
    check_free(host, port)
    os.environ[HOME_VARIABLE] = str(home.path)
    counted = tempfile.TemporaryDirectory(prefix="opentab-metrics-")
    os.environ[DIRECTORY_VARIABLE] = counted.name
    follower = FollowerProcess(home)
    follower.start()
    server = Granian(
        TARGET,
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        workers=workers,
        loop=Loops.uvloop,
        http1_settings=HTTP1Settings(max_buffer_size=HEADERS_BYTES_MAX),
        ssl_cert=tls.cert if tls else None,
        ssl_key=tls.key if tls else None,
        log_level=LogLevels.warning,
        respawn_failed_workers=True,
        workers_kill_timeout=STOP_SECONDS_MAX,
        websockets=False,
    )
    server.on_startup(lambda: tell_of_stop(Path(counted.name) / STOPPING_NAME))
    scheme = "https" if tls else "http"
    say(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/ answers from a replica of {home.path}")
    try:
        server.serve()
    finally:
        follower.stop()
        counted.cleanup()


def tell_of_stop(flag: Path) -> None:
    """Let a signal to stop leave a file that the workers see: streams end then, which else would hold them up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        before: Any = signal.getsignal(number)

        def stop(signum: int, frame: Any, before: Any = before) -> None:
            flag.touch()
            before(signum, frame)

        signal.signal(number, stop)


class FollowerProcess:
    """Keeps a follower running beside the server."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()
        self._thread.join()

    def _keep(self) -> None:
        command = [sys.executable, "-m", "opentab.replica.follow", str(self._home.path), str(os.getpid())]
        pause = RESTART_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            if self._stopping.is_set():
                self._process.terminate()
            self._process.wait()
            # One that stops again and again is started less and less often: what stopped it is in the ledger.
            lived = time.monotonic() - began
            pause = RESTART_SECONDS if lived > RESTART_SECONDS_MAX else min(2 * pause, RESTART_SECONDS_MAX)
            self._stopping.wait(pause)


def check_address(host: str, *, has_key: bool) -> None:
    """Refuse to be reached from other machines without a key: anyone could read every bill."""
    if not has_key and not is_loopback(host):
        raise ConfigError(
            f"server.host {host!r} can be reached from other machines, and there is no key to check tokens with",
            hint="opentab token key makes one; or listen on 127.0.0.1",
        )


def check_tls(tls: Tls) -> None:
    """Say before anything starts that a certificate or its key is no good."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path in (tls.cert, tls.key):
        if not os.access(path, os.R_OK):
            raise ConfigError(f"{path} cannot be read", hint="give PEM files with --tls-cert and --tls-key")
    try:
        context.load_cert_chain(tls.cert, tls.key, password="")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConfigError(
            f"{tls.cert} and {tls.key} are no certificate and its key: {reason}",
            hint="give a PEM certificate chain and its private key without a password",
        ) from error


def check_free(host: str, port: int) -> None:
    """Say before anything starts that a port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InputError(f"{host}:{port} cannot be listened on: {error.strerror}", hint="give --port") from error
