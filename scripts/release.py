"""make release VERSION=1.2.3: write the version, date its section of the changelog, and build wheels and sdists.

The version stands in src/opentab/__init__.py, and nowhere else.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r'^__version__ = "(\d+)\.(\d+)\.(\d+)"$', re.MULTILINE)
UNRELEASED = "## Unreleased\n"


class NoReleaseError(Exception):
    """Nothing was changed; the text says what to do."""


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("opentab: say which version: make release VERSION=1.2.3")
    try:
        prepare(ROOT, sys.argv[1], today=f"{datetime.now(UTC):%Y-%m-%d}")
    except NoReleaseError as error:
        sys.exit(f"opentab: {error}")
    build(ROOT)
    print(  # noqa: T201
        f"dist/ holds opentab and opentab-client {sys.argv[1]}. Run make test, then commit and tag it:\n"
        f'  git commit -am "opentab {sys.argv[1]}" && git tag v{sys.argv[1]}'
    )


def prepare(root: Path, version: str, *, today: str) -> None:
    """The version and the changelog; both or, where something is wrong, neither."""
    package, changelog = root / "src" / "opentab" / "__init__.py", root / "CHANGELOG.md"
    code, changes = package.read_text(encoding="utf-8"), changelog.read_text(encoding="utf-8")
    new, old = VERSION.match(f'__version__ = "{version}"'), VERSION.search(code)
    if new is None:
        raise NoReleaseError(f"{version} is not a version like 1.2.3")
    if old is None:
        raise NoReleaseError(f"{package.relative_to(root)} has no line with __version__; write one")
    dated = f"## {version} - "
    if dated in changes and new.groups() == old.groups():
        return  # it was prepared before, and is built again
    if tuple(map(int, new.groups())) < tuple(map(int, old.groups())) or dated in changes:
        raise NoReleaseError(f"{version} does not come after {'.'.join(old.groups())}; choose a later one")
    unreleased = changes.partition(UNRELEASED)[2].partition("\n## ")[0]
    if "\n- " not in unreleased:
        raise NoReleaseError("CHANGELOG.md has nothing under Unreleased; write what changed")
    changelog.write_text(changes.replace(UNRELEASED, f"{UNRELEASED}\n{dated}{today}\n", 1), encoding="utf-8")
    package.write_text(VERSION.sub(f'__version__ = "{version}"', code), encoding="utf-8")


def build(root: Path) -> None:
    """Both distributions into dist/; a wheel is built from the sdist, so the sdist has all that this needs."""
    ours = root / ".tools" / "uv" / "bin" / "uv"
    uv = str(ours) if ours.exists() else shutil.which("uv")
    if uv is None:
        sys.exit("opentab: uv is missing; run scripts/setup")
    shutil.rmtree(root / "dist", ignore_errors=True)
    # What builds it has hashes, too.
    hashed = ["--require-hashes", "--build-constraints", str(root / "requirements-build.lock")]
    for source in (root, root / "clients" / "python"):
        command = [uv, "build", "--quiet", *hashed, "--out-dir", str(root / "dist"), str(source)]
        if subprocess.run(command, check=False).returncode:
            sys.exit("opentab: a wheel was not built; what uv says above tells why")


if __name__ == "__main__":
    main()
