"""`python -m coil` is the same as `coil`."""

from coil.cli.main import main

main()
