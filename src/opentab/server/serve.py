"""`opentab serve`: one follower that writes the replica, and HTTP workers that share it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from prometheus_client.multiprocess import mark_process_dead

from opentab import __version__
from opentab.core.errors import ConfigError, InputError
from opentab.runtime.config import Home, is_loopback
from opentab.runtime.logs import fields
from opentab.runtime.permissions import check_secret
from opentab.runtime.processes import Kept, Sign, keep, stop
from opentab.server.common_files import DIRECTORY_VARIABLE, STOPPING_NAME, alive_path
from opentab.server.tokens import read_key

RESTART_SECONDS_MAX = 60.0
HUNG_SECONDS = 10.0
STOP_SECONDS_MAX = 8.0  # then a process is killed: longer than a worker gives its requests
BACKLOG = 1024
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)

logger = logging.getLogger("opentab.server")


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate chain and its private key."""

    cert: Path
    key: Path


def serve(home: Home, *, host: str, port: int, workers: int, tls: Tls | None, say: Callable[[str], None]) -> None:
    """Answer until a signal comes."""
    check_address(host, has_key=read_key(home) is not None)
    if tls is not None:
        check_tls(tls)
    signals: SimpleQueue[int] = SimpleQueue()  # unlike an event, it may be told in the midst of anything
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.put(number))
    with listening(host, port) as listener, tempfile.TemporaryDirectory(prefix="opentab-metrics-") as counted:
        os.environ[DIRECTORY_VARIABLE] = counted
        ours = [str(home.path), str(os.getpid())]
        files = [str(tls.cert), str(tls.key)] if tls else []
        answering = ["opentab.server.worker", *ours, str(listener.fileno()), *files]
        follower = Served(["opentab.replica.follow", *ours])
        # A damaged page can crash whoever reads it. A follower that starts probes its copy.
        worker = partial(Served, answering, listener=listener, directory=Path(counted), on_crash=follower.stop)
        kept = [follower, *(worker() for _ in range(workers))]
        scheme = "https" if tls else "http"
        say(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/ answers from a replica of {home.path}")
        logger.info("server starts", extra=fields(version=__version__, host=host, port=port, workers=workers))
        keep(kept, is_over=lambda: not signals.empty())
        # Streams look for it, and end; they would hold the workers up otherwise.
        (Path(counted) / STOPPING_NAME).touch()
        listener.close()
        stop(kept, seconds_max=STOP_SECONDS_MAX)
        logger.info("server stops", extra=fields(reason="told to stop"))


class Served(Kept):
    """The follower; or a worker, which answers at a socket and says in a directory that it lives."""

    def __init__(
        self,
        module: Sequence[str],
        *,
        listener: socket.socket | None = None,
        directory: Path | None = None,
        on_crash: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(restart_seconds_max=RESTART_SECONDS_MAX, hung_seconds=HUNG_SECONDS)
        self.name = "follower" if listener is None else "worker"
        self._command = [sys.executable, "-m", *module]
        self._inherited = () if listener is None else (listener.fileno(),)
        self._directory = directory
        self._on_crash = on_crash

    def start(self) -> subprocess.Popen[bytes] | None:
        with suppress(OSError):  # a machine without a process or memory to spare may have some later
            return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, pass_fds=self._inherited)
        return None

    def ended(self, process: subprocess.Popen[bytes], pause_seconds: float) -> None:
        if -process.returncode in CRASHES:
            self._on_crash()
        mark_process_dead(process.pid)  # type: ignore[no-untyped-call]  # its streams are over

    def hangs(self, seconds: float) -> None:
        sys.stderr.write(f"opentab: a worker has answered nobody for {seconds:.0f} s; it is replaced\n")

    def last_sign(self, process: subprocess.Popen[bytes]) -> Sign | None:
        if self._directory is None:  # a follower says nothing while it folds what is large
            return None
        try:
            return Sign(process.pid, alive_path(self._directory, process.pid).stat().st_mtime_ns)
        except OSError:
            return Sign(0, 0)  # it is still starting


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
    check_secret(tls.key)
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
    listening(host, port).close()


def listening(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on; says so where the port is taken."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(f"{host}:{port} cannot be listened on: {error.strerror}", hint="give --port") from error
    return listener
