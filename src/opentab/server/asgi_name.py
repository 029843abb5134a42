"""How the HTTP workers find their app and their home."""

from __future__ import annotations

TARGET = "opentab.server.asgi:app"
HOME_VARIABLE = "OPENTAB_SERVED_HOME"
# Where the workers count what they did; prometheus-client reads this name.
DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
# A file there: the server is about to stop.
STOPPING_NAME = "stopping"
