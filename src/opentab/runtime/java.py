"""Find a Java that Spark can run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from opentab.core.errors import MachineError

JAVA_VERSIONS = (17, 21)
INSTALL_HINT = "install a Java runtime 17 or 21, on Debian: apt-get install openjdk-17-jre-headless"


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    version: int


def find_java() -> Java:
    """A Java 17 or 21: from JAVA_HOME, from PATH, or from where systems keep them."""
    seen: list[str] = []
    for home in _candidates():
        version = _version(home / "bin" / "java")
        if version in JAVA_VERSIONS:
            return Java(home, version)
        if version is not None:
            seen.append(f"{home} is Java {version}")
    found = f": {'; '.join(seen)}" if seen else ""
    raise MachineError(f"Spark needs Java 17 or 21 and none was found{found}", hint=INSTALL_HINT)


def _candidates() -> list[Path]:
    homes: list[Path] = []
    if os.environ.get("JAVA_HOME"):
        homes.append(Path(os.environ["JAVA_HOME"]))
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    for pattern in ("/usr/lib/jvm/*", "/opt/java/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home"):
        homes += sorted(Path("/").glob(pattern.lstrip("/")))
    return [home for home in dict.fromkeys(homes) if (home / "bin" / "java").exists()]


def _version(java: Path) -> int | None:
    release = java.parent.parent / "release"
    text = release.read_text(errors="replace") if release.exists() else ""
    match = re.search(r'JAVA_VERSION="(\d+)', text)
    if match is None:
        try:
            run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
        except OSError:
            return None
        match = re.search(r'version "(\d+)', run.stderr)
    return int(match[1]) if match else None
