"""The supervisor with real processes: what is killed comes back, what hangs is replaced, and nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from ledgers import new_home
from opentab.billing.pipeline_lock import HomeLock
from opentab.cli import supervisor
from opentab.cli.supervisor import Part
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import read_heartbeat
from opentab.sinks.delivery_status import read_backlog
from opentab_tools.servers.free_port import free_port
from processes import PATIENCE_SECONDS, SMALL_BATCHES, answers, check_exact, position, wait_for
from product import opentab
from receivers import Receiver, new_receiver

Start = Callable[..., subprocess.Popen[str]]


def home_of(path: Path, receiver: Receiver | None = None) -> Home:
    sink = f'[invoices]\nhttp_url = "{receiver.url}"\n' if receiver else ""
    return new_home(path / "home", f"{SMALL_BATCHES}[server]\nport = {free_port()}\n{sink}")


def part(up: subprocess.Popen[str], name: str) -> psutil.Process | None:
    """The process that `up` runs under a name, if it does at this moment."""
    assert up.poll() is None, up.communicate()[0]
    for child in psutil.Process(up.pid).children():
        try:
            if name in child.cmdline():
                return child
        except psutil.NoSuchProcess:
            pass
    return None


def streams(home: Home, up: subprocess.Popen[str]) -> bool:
    beat, run = read_heartbeat(home.ledger), part(up, "run")
    return beat is not None and run is not None and beat.pid == run.pid and beat.streaming


def serves(home: Home, up: subprocess.Popen[str]) -> bool:
    return part(up, "serve") is not None and answers(f"http://127.0.0.1:{home['server.port']}")


def delivers(home: Home, up: subprocess.Popen[str]) -> bool:
    backlog, deliver = read_backlog(home.sinks_path), part(up, "deliver")
    return backlog is not None and deliver is not None and backlog.pid == deliver.pid


def family(up: subprocess.Popen[str]) -> list[psutil.Process]:
    """All that `up` has started, and what that has."""
    return psutil.Process(up.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() for process in processes)


def test_what_dies_or_hangs_comes_back_and_the_bill_is_exact(tmp_path: Path, start: Start) -> None:
    with new_receiver().listening() as receiver:
        home = home_of(tmp_path, receiver)
        up = start("up", "--hung-after", "15s", home=home)
        wait_for(lambda: streams(home, up) and serves(home, up) and delivers(home, up), "all of it ran")
        options = ("--months", "2", "--first-period", "2025-01", "--events", "300", "--until-final")
        opentab("generate", *options, home=home)
        wait_for(lambda: position(home) >= 2, "batches were billed")

        for name, is_back in (("serve", serves), ("deliver", delivers)):
            killed = part(up, name)
            assert killed is not None
            below = killed.children(recursive=True)
            killed.kill()
            wait_for(lambda: gone([killed, *below]) and is_back(home, up), f"{name} was back")  # noqa: B023

        killed = part(up, "run")
        assert killed is not None
        killed.kill()
        wait_for(lambda: gone([killed]) and streams(home, up), "the pipeline was back")

        hung = part(up, "run")
        assert hung is not None
        hung.suspend()
        opentab("generate", "--months", "1", "--first-period", "2025-06", "--events", "100", home=home)
        wait_for(lambda: gone([hung]) and streams(home, up), "the one that hung was replaced")
        billed_us = time.time_ns() // 1000
        wait_for(lambda: (read_heartbeat(home.ledger).caught_up_us or 0) > billed_us, "it caught up")  # type: ignore[union-attr]

        everything = family(up)
        up.terminate()
        output, _ = up.communicate(timeout=PATIENCE_SECONDS)
        assert up.returncode == 0, output
        assert gone(everything)
        assert output.count("run started: process") == 3, output
        assert "run died (SIGKILL)" in output
        assert re.search(r"run hangs: no sign of life for \d+ s; it is killed", output)
        assert "run ended" in output
        assert "serve ended" in output

        check_exact(home)
        opentab("deliver", "--once", home=home)
        printed = opentab("invoices", "--all-revisions", "--format", "json", home=home).stdout.splitlines()
        assert sorted(printed) == sorted(body.decode() for body in receiver.held.values())
        assert len(printed) >= 18


def test_a_supervisor_that_is_killed_leaves_no_process(tmp_path: Path, start: Start) -> None:
    home = home_of(tmp_path)
    up = start("up", home=home)
    wait_for(lambda: streams(home, up) and serves(home, up), "all of it ran")
    everything = family(up)
    assert len(everything) >= 5  # pipeline, Java, server, worker, follower
    up.kill()
    up.wait()
    wait_for(lambda: gone(everything), "all of it was gone")
    # Killed while they start, too.
    again = start("up", home=home)
    wait_for(lambda: part(again, "serve") is not None and part(again, "run") is not None, "they started")
    wait_for(lambda: len(family(again)) > 2, "they started processes of their own")
    everything = family(again)
    again.kill()
    again.wait()
    wait_for(lambda: gone(everything), "all of it was gone")


def test_a_mistake_in_the_settings_stops_everything(tmp_path: Path) -> None:
    home = new_home(
        tmp_path / "home", f'[server]\nport = {free_port()}\n[invoices]\nhttp_url = "https://example.com/bills"\n'
    )
    said = opentab("up", "--without", "run", home=home, check=False)
    assert said.returncode == 2
    assert "opentab deliver: invoices would go to https://example.com/bills without a signature" in said.stderr
    assert "put a key into a file" in said.stderr
    assert "serve ended" in said.stderr
    nothing = opentab("up", "--without", "run", "--without", "serve", "--without", "deliver", home=home, check=False)
    assert nothing.returncode == 2
    assert "nothing is left to run" in nothing.stderr


def test_another_pipeline_is_waited_for_and_another_supervisor_refused(tmp_path: Path, start: Start) -> None:
    home = home_of(tmp_path)
    other = HomeLock(home.path, take_over=False)
    up = start("up", "--without", "serve", home=home)
    log = home.logs_path / "run.log"
    sentence = f"another pipeline works on {home.path}: process {os.getpid()}"
    wait_for(lambda: log.exists() and log.read_text().count(sentence) == 2, "it tried again")
    second = opentab("up", home=home, check=False)
    assert second.returncode == 4
    assert f"another opentab up works on {home.path}: process {up.pid}" in second.stderr
    other.release()
    wait_for(lambda: part(up, "run") is not None and read_heartbeat(home.ledger) is not None, "it took the place")
    up.send_signal(signal.SIGINT)
    output, _ = up.communicate(timeout=PATIENCE_SECONDS)
    assert up.returncode == 0, output
    assert f"run died (exit code 4): {sentence}" in output
    assert "again in 1 s" in output
    assert "again in 2 s" in output


def test_a_long_log_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOG_BYTES_MAX", 100)
    home = home_of(tmp_path)
    log = home.logs_path / "serve.log"
    home.logs_path.mkdir()
    log.write_text("before\n")
    server = Part(home, "serve", hung_after=timedelta(seconds=60), say=lambda _: None)
    try:
        server.look(time.monotonic())
        assert log.read_text().startswith("before\n--- ")
        with log.open("a") as file:
            file.write("long\n" * 50)
        server.look(time.monotonic())
        assert log.with_suffix(".log.1").read_text().endswith("long\n")
        wait_for(lambda: "answers from a replica" in log.read_text(), "it wrote on")
        assert log.read_bytes().count(b"\0") == 0
    finally:
        server.kill()
    assert not server.runs
