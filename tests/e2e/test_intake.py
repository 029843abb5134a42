"""Events over HTTP while the log stalls, and after the thread that writes them has failed."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import httpx
import psutil
import pytest

from apps import App, app_of
from ledgers import SETTINGS, new_home
from opentab.log import DirectoryLog
from opentab.runtime.config import Home
from opentab.server import limits
from opentab.server.intake import (
    BODY_BYTES_MAX,
    EVENTS_MAX,
    WAITING_BYTES_MAX,
    WAITING_REQUESTS_MAX,
    Intake,
    Overloaded,
    TooManyEvents,
    split,
)
from opentab.server.tokens import Role, issue, read_key
from processes import serving, wait_for
from product import event, opentab


def worker_of(home: Home) -> int | None:
    """The process id of the home's only worker."""
    for process in psutil.Process().children(recursive=True):
        try:
            command = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        if "opentab.server.worker" in command and str(home.path) in command:
            return int(process.pid)
    return None


def post(url: str, customer: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/events", json=json.loads(event(customer)), timeout=30)


def customers_in(home: Home) -> list[str]:
    log = DirectoryLog(home.log_path)
    bodies = [log.read("default", number).body for number in log.pending()["default"]]
    return [json.loads(line)["customer"] for body in bodies for line in bytes(body).splitlines()]


def test_a_log_that_stalls_longer_than_a_request_may_take(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS + '[server]\nrequest_timeout = "2s"\n')
    log = DirectoryLog(home.log_path)
    with serving(home, workers=1) as url, ExitStack() as held:
        assert post(url, "before").status_code == 202
        worker = worker_of(home)
        held.enter_context(log.lock("default"))
        stalled = post(url, "held")
        assert (stalled.status_code, stalled.headers["retry-after"]) == (503, "5")
        assert post(url, "queued").status_code == 503
        held.close()
        assert post(url, "after").status_code == 202
        assert worker_of(home) == worker
    assert customers_in(home) == ["before", "held", "after"], (
        "what was still in the queue when it was cancelled is not written"
    )


def test_a_worker_whose_intake_failed_is_replaced(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home = new_home(tmp_path / "home")
    with serving(home, workers=1, OPENTAB_CRASH_AT="gathered:2:RAISE") as url:
        assert post(url, "first").status_code == 202
        worker = worker_of(home)
        with pytest.raises(httpx.TransportError):
            post(url, "second")
        wait_for(lambda: worker_of(home) not in (None, worker), "another worker was there")
        assert post(url, "third").status_code == 202
    assert customers_in(home) == ["first", "third"]
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("Error:")]
    assert line.startswith("Error: the intake thread failed, this worker ends: Fault: gathered:2:RAISE (crash.py:")


def test_so_many_requests_wait_for_the_log(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    intake = Intake(home)
    with DirectoryLog(home.log_path).lock("default"):
        waiting = [intake.append([event().encode()]) for _ in range(WAITING_REQUESTS_MAX)]
        with pytest.raises(Overloaded, match="2,000 requests are waiting"):
            intake.append([event().encode()])
        assert waiting.pop().cancel()
    assert len({future.result(timeout=30)[0] for future in waiting}) == WAITING_REQUESTS_MAX - 1
    assert intake.append([event().encode()]).result(timeout=30)
    intake.close()
    assert len(customers_in(home)) == WAITING_REQUESTS_MAX


def test_so_many_bytes_wait_for_the_log(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    intake = Intake(home)
    line = event()[:-1] + ', "note": "' + "x" * (BODY_BYTES_MAX // EVENTS_MAX - 200) + '"}'
    lines = [line.encode()] * EVENTS_MAX
    with DirectoryLog(home.log_path).lock("default"):
        waiting = [intake.append(lines) for _ in range(WAITING_BYTES_MAX // (len(line) * EVENTS_MAX))]
        with pytest.raises(Overloaded, match="the log is slow"):
            intake.append(lines)
    assert {len(future.result(timeout=60)) for future in waiting} == {EVENTS_MAX}
    intake.close()


def test_so_many_bytes_are_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = new_home(tmp_path / "home", '[server]\nkey_file = "key"\n')
    opentab("token", "key", home=home)
    body = event().encode()
    monkeypatch.setattr(limits, "UNDER_WAY_HOLDER_BYTES_MAX", 3 * len(body))
    monkeypatch.setattr(limits, "UNDER_WAY_BYTES_MAX", 5 * len(body))

    async def ask(app: App, held: ExitStack) -> list[list[tuple[int, str | None]]]:
        tokens = [issue(read_key(home) or b"", Role.INGEST, customer=None, lifetime=timedelta(days=1)) for _ in "ab"]
        async with app.client(headers={"content-type": "application/json"}) as client:

            async def post(token: str) -> tuple[int, str | None]:
                headers = {"authorization": f"Bearer {token}"}
                answer = await client.post("/v1/events", content=body, headers=headers)
                return answer.status_code, answer.headers.get("retry-after")

            asked = [
                [asyncio.create_task(post(token)) for _ in range(count)]
                for token, count in zip(tokens, (4, 3), strict=True)
            ]
            for group in asked:
                await asyncio.wait(group, return_when=asyncio.FIRST_COMPLETED)
            held.close()
            found = [await asyncio.gather(*group) for group in asked]
            return [*found, [await post(token) for token in tokens]]

    with app_of(home) as app, ExitStack() as held:
        held.enter_context(DirectoryLog(home.log_path).lock("default"))
        first, second, after = asyncio.run(ask(app, held))
    assert first == [(202, None)] * 3 + [(429, "5")]
    assert second == [(202, None)] * 2 + [(503, "5")]
    assert after == [(202, None)] * 2, "what was taken no longer counts"


def test_millions_of_small_values_are_refused_before_they_are_taken_apart() -> None:
    """Two MiB of them would hold Python's lock for a second."""
    with pytest.raises(TooManyEvents):
        split(b"[" + b"1," * 2**20 + b"1]")
    with pytest.raises(TooManyEvents):
        split(b"[" + b"{}," * EVENTS_MAX + b"{}]")
    assert len(split(b"[" + b"{}," * (EVENTS_MAX - 1) + b"{}]")[0]) == EVENTS_MAX
