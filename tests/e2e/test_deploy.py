"""What deploy/ holds agrees with the product: settings, commands, probes, and what the dashboard asks for."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ledgers import SETTINGS, bill, new_home
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import Heartbeat, write_heartbeat
from opentab.sinks.delivery_status import read_backlog
from processes import serving, wait_for
from product import event, opentab
from receivers import new_receiver

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PARTS = ("master", "worker")  # of Spark's, in deploy/entrypoint.sh
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("opentab")}
MANIFESTS: list[dict[str, Any]] = [
    document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


def test_every_metric_that_the_dashboard_asks_for_is_there(tmp_path: Path) -> None:
    receiver = new_receiver()
    home = new_home(tmp_path / "home", f'{SETTINGS}[invoices]\nhttp_url = "{receiver.url}"\n')
    first = json.dumps(json.loads(event("ann", "1.00")) | {"id": "1"})
    bill(home, first, first, "{", event("ann", "1.00", "2026-02-15T12:00:00Z"))
    with receiver.listening():
        opentab("deliver", "--once", home=home)
    assert read_backlog(home.sinks_path) is not None
    now_us = time.time_ns() // 1000
    write_heartbeat(home.ledger, Heartbeat(now_us, "run", 1, True, 1, True, now_us, 0))
    dashboard = json.loads((DEPLOY / "grafana" / "opentab.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"opentab_\w+", target["expr"])
    }
    with serving(home, workers=1) as url:
        wait_for(lambda: httpx.get(f"{url}/readyz").status_code == 200, "it was ready")
        text = httpx.get(f"{url}/metrics").text
    there = set(re.findall(r"^(opentab_\w+)[{ ]", text, re.MULTILINE))
    assert len(asked) > 20 and asked <= there, asked - there


@pytest.mark.parametrize("path", [DEPLOY / "compose.toml", DEPLOY / "kubernetes" / "opentab.toml"], ids=str)
def test_settings_are_the_products(tmp_path: Path, path: Path) -> None:
    (tmp_path / "opentab.toml").write_bytes(path.read_bytes())
    home: Home = config.load(tmp_path)
    assert home.kafka is not None and home["kafka.connector"] == ""
    assert not home.ledger.is_local and not home.tasks_are_here
    assert home.spark["spark.pyspark.python"] == "/opt/opentab/bin/python"


def test_compose_names_what_there_is() -> None:
    assert set(COMPOSE) <= {"name", "configs", "volumes", "services"} | {key for key in COMPOSE if key.startswith("x-")}
    for name, service in SERVICES.items():
        assert re.fullmatch(r"[a-z0-9/-]+(:[A-Za-z0-9._-]+)?", service["image"]), "an image without a registry's host"
        for other, wanted in service["depends_on"].items() if isinstance(service.get("depends_on"), dict) else ():
            if wanted["condition"] == "service_healthy":
                assert "test" in SERVICES[other]["healthcheck"], (name, other)
            else:
                assert SERVICES[other]["restart"] == "no", (name, other)
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], volume
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "for this machine alone"
    for source in COMPOSE["configs"].values():
        assert (DEPLOY / source["file"]).exists()


def commands() -> list[list[str]]:
    """What our containers run, but for Spark's own parts."""
    words = [service["command"] for service in OURS.values() if "command" in service]
    pods = [one["spec"]["template"]["spec"] for one in MANIFESTS if one["kind"] == "StatefulSet"]
    words += [container["args"] for pod in pods for container in pod["containers"]]
    return [command for command in words if command[0] not in PARTS]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_are_the_products(command: list[str]) -> None:
    """An option that does not exist would be an error before the help is shown."""
    assert "Usage" in opentab(*command, "--help").stdout


def test_the_image_is_a_user_without_rights_everywhere() -> None:
    user = re.search(r"^USER (\d+):(\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    pods = [one["spec"]["template"]["spec"] for one in MANIFESTS if one["kind"] == "StatefulSet"]
    pods += [one["spec"] for one in MANIFESTS if one["kind"] == "Pod"]
    assert len(pods) == 3
    for pod in pods:
        security = pod["securityContext"]
        assert (security["runAsUser"], security["runAsGroup"]) == (int(user[1]), int(user[2]))
        assert security["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_services_find_their_pods() -> None:
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in MANIFESTS if one["kind"] == "StatefulSet"]
    selectors = [one["spec"]["selector"] for one in MANIFESTS if one["kind"] == "Service"]
    selectors += [one["spec"]["selector"]["matchLabels"] for one in MANIFESTS if one["kind"] == "PodDisruptionBudget"]
    assert len(selectors) == 4
    for selector in selectors:
        assert any(selector.items() <= one.items() for one in labels), selector


def test_spark_starts_its_executors_by_the_images_entrypoint(tmp_path: Path) -> None:
    """As Spark's own scheduler starts one: one word, and the rest in the environment."""
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SPARK_HOME": "/opt/spark",
        "SPARK_CONF_DIR": "/opt/spark/conf",
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
        "SPARK_JAVA_OPT_1": "-XX:OnOutOfMemoryError=kill -9 %p",
        "SPARK_EXECUTOR_MEMORY": "2048m",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@opentab-pipeline:7078",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_APPLICATION_ID": "spark-application-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "opentab-exec-1",
    }
    done = subprocess.run(
        ["sh", DEPLOY / "entrypoint.sh", "executor"], env=environment, capture_output=True, text=True, check=True
    )
    words = done.stdout.splitlines()
    assert words[:4] == [
        "-Dspark.driver.port=7078",
        "-XX:OnOutOfMemoryError=kill -9 %p",
        "-Xms2048m",
        "-Xmx2048m",
    ]
    assert "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend" in words
    assert words[-2:] == ["--podName", "opentab-exec-1"]
