"""The app of one HTTP worker; the home comes from the process that started it."""

from __future__ import annotations

import gc
import multiprocessing
import os
from pathlib import Path

from opentab import config
from opentab.parent import end_with_parent
from opentab.server.app import build_app
from opentab.server.asgi_name import HOME_VARIABLE

server = multiprocessing.parent_process()
if server is not None and server.pid is not None:
    # Without it a worker would go on listening, and no other server could take its place.
    end_with_parent(server.pid)
app = build_app(config.load(Path(os.environ[HOME_VARIABLE])))
# What is here now stays; there is no need to go through all of it for every few thousand answers.
gc.collect()
gc.freeze()
