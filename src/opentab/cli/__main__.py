"""python -m opentab.cli: the command line, for processes that opentab starts itself."""

from opentab.cli import main

main()
