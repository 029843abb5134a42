"""The page's own files: read once, sent with headers that let it run nothing but itself."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent / "web"
SHELL = "index.html"
MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)


@dataclass(frozen=True, slots=True)
class WebFile:
    """One file, ready to be sent."""

    body: bytes
    headers: dict[str, str]


def web_files() -> dict[str, WebFile]:
    """All of them, by name."""
    return {path.name: _read(path) for path in FOLDER.iterdir() if path.suffix in MEDIA}


def _read(path: Path) -> WebFile:
    body = path.read_bytes()
    headers = {
        "content-type": MEDIA[path.suffix],
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        # Asked again each time, and sent only if it has changed: a new version is there at once, whole.
        "cache-control": "no-cache",
        "etag": f'"{sha256(body).hexdigest()[:32]}"',
    }
    return WebFile(body, headers)
