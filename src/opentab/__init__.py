"""opentab: a tab you can read while it is still open.

opentab.run("my-home", spark=my_session, source=MySource())     the pipeline, in a Spark program of your own
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentab.billing.api import run
    from opentab.billing.run import Progress
    from opentab.billing.source import Offsets, Source
    from opentab.core.errors import OpentabError

__version__ = "0.1.0"
__all__ = ["Offsets", "OpentabError", "Progress", "Source", "run"]

_HOMES = {
    "Offsets": "opentab.billing.source",
    "OpentabError": "opentab.core.errors",
    "Progress": "opentab.billing.run",
    "Source": "opentab.billing.source",
    "run": "opentab.billing.api",
}


if not TYPE_CHECKING:  # to a type checker a name that is not above does not exist

    def __getattr__(name: str) -> Any:
        """Imported where it is first asked for: Spark is not needed to read a tab."""
        if name not in _HOMES:
            raise AttributeError(f"module 'opentab' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
