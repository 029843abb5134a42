"""The app of one HTTP worker; the home comes from the process that started it."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from opentab import config
from opentab.server.app import build_app
from opentab.server.asgi_name import HOME_VARIABLE

app = build_app(config.load(Path(os.environ[HOME_VARIABLE])))
# What is here now stays; there is no need to go through all of it for every few thousand answers.
gc.collect()
gc.freeze()
