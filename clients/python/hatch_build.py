"""Makes the package opentab_client of the sources of opentab.client and opentab.api: no copy of them is kept."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src" / "opentab"
PACKAGE = "opentab_client"
NAMES = {"opentab.client": PACKAGE, "opentab.api": f"{PACKAGE}.api"}
FOLDERS = {"client": "", "api": "api"}


def version() -> str:
    """That of opentab; an sdist says it by itself."""
    told = HERE / "PKG-INFO"
    text = (told if told.exists() else SOURCES / "__init__.py").read_text(encoding="utf-8")
    return re.findall(r'^(?:Version: |__version__ = ")([\d.]+)', text, re.MULTILINE)[0]


__version__ = version()


class SameSources(BuildHookInterface):
    """Writes the package into a folder of its own, and lets it be built from there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.made = Path(tempfile.mkdtemp())
        if not (HERE / PACKAGE).exists():  # an sdist has it already
            write_package(self.made)
            build_data["force_include"][str(self.made)] = PACKAGE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self.made)


def write_package(package: Path) -> None:
    """The same modules under the names that they have here."""
    for folder, place in FOLDERS.items():
        (package / place).mkdir(exist_ok=True)
        for source in SOURCES.joinpath(folder).glob("*.py"):
            text = source.read_text(encoding="utf-8")
            for name, ours in NAMES.items():
                text = text.replace(name, ours)
            package.joinpath(place, source.name).write_text(text, encoding="utf-8")
    shutil.copy(SOURCES / "py.typed", package)
