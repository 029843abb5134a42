"""Something that goes on next to a test: played again and again until the test has seen enough."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(play: Callable[[], None], *, every_seconds: float) -> Iterator[None]:
    """Play something in a thread of its own, until the block ends."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(every_seconds):
            play()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
