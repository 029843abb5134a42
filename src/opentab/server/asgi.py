"""The app of one HTTP worker; the home comes from the process that started it."""

from __future__ import annotations

import os
from pathlib import Path

from opentab import config
from opentab.server.app import build_app
from opentab.server.asgi_name import HOME_VARIABLE

app = build_app(config.load(Path(os.environ[HOME_VARIABLE])))
