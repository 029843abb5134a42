"""Killed for real, at named steps and at random: after a restart the bill is exact."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from opentab.log import DirectoryLog, Producer
from opentab.runtime.config import Home
from opentab.simulator.generator import Plan, generate
from processes import (
    PATIENCE_SECONDS,
    caught_up_us,
    check_exact,
    javas_of,
    on_its_own_disk,
    parent_of,
    position,
    streams,
    wait_for,
)
from product import event, json_lines, opentab

SEED = 20170613


def test_killed_at_each_named_step(small_home: Home) -> None:
    moments = ["taken:2", "staged:2", "committed:2", "compacting:1", "snapshot:1"]
    for month, moment in enumerate(moments, start=1):
        generate(
            Plan(seed=month, first_period=f"2025-{month:02d}", events_per_customer=200, bad_share=0.02), small_home
        )
        died = opentab("run", "--once", home=small_home, check=False, OPENTAB_CRASH_AT=moment)
        assert died.returncode == -signal.SIGKILL, (moment, died)
        shutil.rmtree(small_home.checkpoint_path, ignore_errors=True)
    check_exact(small_home)
    rejected = json_lines(opentab("rejections", "--format", "json", home=small_home).stdout)
    assert len({row["place"] for row in rejected}) == len(rejected) > 0


def test_killed_at_random_while_events_stream_in(small_home: Home, start: Callable[..., subprocess.Popen[str]]) -> None:
    dice = random.Random(SEED)
    options = ("--months", "1", "--month-seconds", "30", "--events", "1500", "--beyond", "0.02")
    simulator = start("generate", *options, home=small_home)
    for when in ("starting", "running", "running"):
        pipeline = start("run", home=small_home)
        seen = position(small_home)
        if when == "starting":
            time.sleep(dice.uniform(0.5, 7))  # Java, Spark, the stream, the workers: any of them
        else:
            wait_for(lambda: position(small_home) > seen and streams(small_home, pipeline), "a batch was billed")  # noqa: B023
            time.sleep(dice.uniform(0, 2))
        java = javas_of(pipeline)
        if dice.random() < 0.5:
            os.killpg(pipeline.pid, signal.SIGKILL)
        else:
            pipeline.kill()
        pipeline.wait()
        wait_for(lambda: not any(p.is_running() for p in java), "Spark's Java process was gone")  # noqa: B023
    assert simulator.wait(timeout=PATIENCE_SECONDS) == 0
    check_exact(small_home)


def test_parts_of_spark_killed(small_home: Home, start: Callable[..., subprocess.Popen[str]]) -> None:
    pipeline = start("run", home=small_home)
    wait_for(lambda: streams(small_home, pipeline), "Spark was up")
    opentab("generate", "--months", "1", "--events", "400", home=small_home)
    wait_for(lambda: position(small_home) >= 2, "batches were billed")
    (java,) = javas_of(pipeline)
    # Spark's Python daemon is a child of Java's, and the workers are children of the daemon's.
    workers = [child for child in java.children(recursive=True) if parent_of(child) not in (None, java.pid)]
    assert workers
    for worker in workers:
        worker.kill()
    # A lost Python worker is a task tried again.
    opentab("generate", "--first-period", "2025-01", "--months", "1", "--events", "400", home=small_home)
    generated_us = time.time_ns() // 1000
    wait_for(lambda: caught_up_us(small_home) > generated_us, "it caught up")
    assert pipeline.poll() is None
    # A lost Java process ends the run with a sentence, and a new run goes on.
    opentab("generate", "--first-period", "2025-02", "--months", "1", "--events", "100", home=small_home)
    java.kill()
    output, _ = pipeline.communicate(timeout=PATIENCE_SECONDS)
    assert pipeline.returncode == 1
    assert "Spark's Java process died" in output
    assert "Traceback" not in output
    check_exact(small_home)


def test_one_pipeline_a_home_and_a_zombie_is_fenced(
    small_home: Home, start: Callable[..., subprocess.Popen[str]]
) -> None:
    producer = Producer(DirectoryLog(small_home.log_path))
    zombie = start("run", home=small_home, OPENTAB_CRASH_AT="staged:2:STOP")
    producer.append(event(amount="1").encode())
    wait_for(lambda: position(small_home) == 1, "the first batch was billed")

    second = opentab("run", "--once", home=small_home, check=False)
    assert second.returncode == 4
    assert f"another pipeline works on {small_home.path}: process {zombie.pid}" in second.stderr
    assert "--take-over" in second.stderr

    producer.append(event(amount="2").encode())
    wait_for(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_STOPPED, "it hung between staging and commit")
    opentab("run", "--once", "--take-over", home=small_home)
    os.kill(zombie.pid, signal.SIGCONT)
    output, _ = zombie.communicate(timeout=PATIENCE_SECONDS)
    assert zombie.returncode == 4
    assert "another pipeline has taken over this home" in output
    (total,) = json_lines(opentab("totals", "--format", "json", home=small_home).stdout)
    assert (total["total"], total["events"], total["position"]) == ("3.000000", 2, 2)


def test_a_zombie_that_wakes_up_idle_stops(small_home: Home, start: Callable[..., subprocess.Popen[str]]) -> None:
    producer = Producer(DirectoryLog(small_home.log_path))
    zombie = start("run", home=small_home)
    wait_for(lambda: streams(small_home, zombie), "Spark was up")
    os.killpg(zombie.pid, signal.SIGSTOP)
    producer.append(event(amount="2").encode())
    opentab("run", "--once", "--take-over", home=small_home)
    os.killpg(zombie.pid, signal.SIGCONT)
    output, _ = zombie.communicate(timeout=PATIENCE_SECONDS)
    assert zombie.returncode == 4, output
    assert "another pipeline has taken over this home" in output
    check_exact(small_home)


def test_a_live_pipeline_is_taken_over_under_load(
    small_home: Home, start: Callable[..., subprocess.Popen[str]]
) -> None:
    first = start("run", home=small_home)
    wait_for(lambda: streams(small_home, first), "Spark was up")
    simulator = start("generate", "--months", "1", "--month-seconds", "40", "--events", "1000", home=small_home)
    wait_for(lambda: position(small_home) > 1, "batches were billed")
    second = start("run", "--take-over", home=small_home)
    output, _ = first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode == 4, output
    assert "another pipeline has taken over this home" in output
    seen = position(small_home)
    wait_for(lambda: streams(small_home, second) and position(small_home) > seen, "the second one bills")
    assert simulator.wait(timeout=PATIENCE_SECONDS) == 0
    # Stopped under load: it ends after the batch that is under way.
    opentab("generate", "--first-period", "2025-01", "--months", "1", "--events", "2000", home=small_home)
    second.terminate()
    output, _ = second.communicate(timeout=PATIENCE_SECONDS)
    assert second.returncode == 0, output
    check_exact(small_home)


def test_stopped_by_a_signal_it_ends_cleanly(small_home: Home, start: Callable[..., subprocess.Popen[str]]) -> None:
    pipeline = start("run", home=small_home)
    wait_for(lambda: streams(small_home, pipeline), "Spark was up")
    Producer(DirectoryLog(small_home.log_path)).append(event().encode())
    wait_for(lambda: position(small_home) == 1, "the batch was billed")
    java = javas_of(pipeline)
    pipeline.terminate()
    output, _ = pipeline.communicate(timeout=PATIENCE_SECONDS)
    assert pipeline.returncode == 0, output
    assert "1 event and 0 rejections in 1 batch; position 1" in output
    wait_for(lambda: not any(p.is_running() for p in java), "Java was gone")


def test_a_full_disk_stops_it_clearly_and_space_lets_it_go_on(tmp_path: Path) -> None:
    printed = on_its_own_disk("scene_disk_full", tmp_path)
    assert "stopped: no space left on the disk" in printed
    assert printed.rstrip().endswith("exact"), printed
