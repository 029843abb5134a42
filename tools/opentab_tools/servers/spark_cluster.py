"""A real Spark cluster on loopback: ZooKeeper, a master and its standby, two workers. Any of them can be killed.

All of it comes from pyspark's own jars.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from opentab.core.errors import MachineError
from opentab.runtime.java import find_java
from opentab_tools.servers.daemon import Daemon
from opentab_tools.servers.free_port import free_port
from opentab_tools.servers.jars import java_program, spark_home

FAIL_OVER_SECONDS_MAX = 120
MASTERS = 2
WORKERS = 2
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"

# Spark asks for sessions of a minute; the server gives it a few seconds, so that a standby takes over soon.
ZOOKEEPER = """\
tickTime=1000
minSessionTimeout=2000
maxSessionTimeout=6000
dataDir={data}
clientPortAddress=127.0.0.1
clientPort={port}
admin.enableServer=false
"""
LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


class Master:
    """One of the masters; the one that is ALIVE gives out the work."""

    def __init__(self, name: str, cluster: SparkCluster) -> None:
        self.port = free_port()
        self.web_port = free_port()
        words = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.web_port)]
        program = "org.apache.spark.deploy.master.Master"
        self.daemon = cluster.spark_daemon(name, program, words)

    @property
    def status(self) -> str:
        """ALIVE, STANDBY, RECOVERING …, or GONE."""
        return str(self._state().get("status", "GONE"))

    @property
    def workers_alive(self) -> int:
        return int(self._state().get("aliveworkers", 0))

    def _state(self) -> dict[str, Any]:
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.web_port}/json/", timeout=5)
            found = answer.json() if answer.status_code == httpx.codes.OK else {}
        except (httpx.HTTPError, ValueError):
            return {}
        return dict(found)


class Worker:
    """One of the workers, with its executors as children."""

    def __init__(self, name: str, cluster: SparkCluster) -> None:
        port, web_port = str(free_port()), str(free_port())
        words = ["--host", "127.0.0.1", "--port", port, "--webui-port", web_port, "--memory", "1g"]
        words += ["--cores", str(cluster.worker_cores)]
        words += ["--work-dir", str(cluster.directory / name), cluster.master_url]
        self.daemon = cluster.spark_daemon(
            name, "org.apache.spark.deploy.worker.Worker", words, hidden_path=cluster.hidden_path
        )

    def executors(self) -> list[psutil.Process]:
        """Its executors that run now."""
        if not self.daemon.runs:
            return []
        found = []
        for child in psutil.Process(self.daemon.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if EXECUTOR in child.cmdline():
                    found.append(child)
        return found


class SparkCluster:
    """Started as a whole; each part can be killed and started again on its own, on the same port."""

    def __init__(self, directory: Path, *, hidden_path: Path | None = None, worker_cores: int = 1) -> None:
        """Workers do not see what is below `hidden_path`, as if they ran on other machines; that needs root."""
        self.directory = directory.absolute()
        self.worker_cores = worker_cores
        self.hidden_path = hidden_path
        self.zookeeper_port = free_port()
        self.zookeeper = self._zookeeper()
        self.masters = [Master(f"master-{number + 1}", self) for number in range(MASTERS)]
        self.workers = [Worker(f"worker-{number + 1}", self) for number in range(WORKERS)]

    def __enter__(self) -> SparkCluster:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def master_url(self) -> str:
        """For `spark.master`: whoever has it finds the active one."""
        return "spark://" + ",".join(f"127.0.0.1:{master.port}" for master in self.masters)

    @property
    def active_master(self) -> Master | None:
        """The one that gives out work; None while there is none."""
        return next((master for master in self.masters if master.status == "ALIVE"), None)

    @property
    def standby_master(self) -> Master | None:
        return next((master for master in self.masters if master.status == "STANDBY"), None)

    def start(self) -> None:
        """Start what does not run; returns when a master is active, the other stands by and all workers are known."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "zoo.cfg").write_text(
            ZOOKEEPER.format(data=self.directory / "zookeeper", port=self.zookeeper_port), encoding="utf-8"
        )
        (self.directory / "log4j2.properties").write_text(LOG4J, encoding="utf-8")
        masters = [self.zookeeper, *(master.daemon for master in self.masters)]
        for daemon in masters:
            daemon.start()
        # A worker that finds no master tries again after some ten seconds.
        self.wait_until(lambda: self.active_master is not None, "a master was active", *masters)
        for worker in self.workers:
            worker.daemon.start()
        self.wait_until(lambda: self._complete, "all of the cluster was ready", *self._daemons())

    @property
    def _complete(self) -> bool:
        return self.standby_master is not None and self.workers_alive == len(self.workers)

    def wait_until(self, done: Callable[[], bool], what: str, *daemons: Daemon) -> None:
        """Wait for a fact about the cluster; raise if one of the daemons ends, or if it takes too long."""
        deadline = time.monotonic() + FAIL_OVER_SECONDS_MAX
        while not done():
            for daemon in daemons:
                daemon.check()
            if time.monotonic() > deadline:
                raise MachineError(
                    f"waited {FAIL_OVER_SECONDS_MAX} s in vain until {what}", hint=f"see {self.directory}"
                )
            time.sleep(0.1)

    @property
    def workers_alive(self) -> int:
        """How many workers the active master can use."""
        active = self.active_master
        return active.workers_alive if active else 0

    def executors(self) -> list[psutil.Process]:
        """All executors that run now."""
        return [executor for worker in self.workers for executor in worker.executors()]

    def kill_executor(self) -> int:
        """SIGKILL for one executor; its process id."""
        for executor in self.executors():
            with suppress(psutil.NoSuchProcess):
                executor.send_signal(signal.SIGKILL)
                return int(executor.pid)
        raise MachineError("there is no executor to kill")

    def kill(self) -> None:
        """SIGKILL for all of it."""
        for daemon in reversed(self._daemons()):
            daemon.kill()

    def spark_daemon(self, name: str, program: str, words: list[str], *, hidden_path: Path | None = None) -> Daemon:
        options = {
            "spark.deploy.recoveryMode": "ZOOKEEPER",
            "spark.deploy.zookeeper.url": f"127.0.0.1:{self.zookeeper_port}",
            "spark.deploy.zookeeper.dir": "/spark",
            "spark.worker.timeout": "20",
            "spark.worker.cleanup.enabled": "true",
        }
        environment = {
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(spark_home()),
            # Only what stands here counts, whatever else is set up on this machine.
            "SPARK_CONF_DIR": str(self.directory),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
            + " ".join(f"-D{key}={value}" for key, value in options.items()),
        }
        # The script ends by exec: a signal to it is a signal to Java.
        command = [str(spark_home() / "bin" / "spark-class"), program, *words]
        if hidden_path is not None:
            hide = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", hide, str(hidden_path), *command]
        return Daemon(name, command, self.directory, environment)

    def _zookeeper(self) -> Daemon:
        java = [java_program(), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        java += [f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}", "-cp", f"{spark_home()}/jars/*"]
        program = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return Daemon("zookeeper", [*java, program, str(self.directory / "zoo.cfg")], self.directory)

    def _daemons(self) -> list[Daemon]:
        masters, workers = (master.daemon for master in self.masters), (worker.daemon for worker in self.workers)
        return [self.zookeeper, *masters, *workers]
