"""`python -m slrt_dask.cli` is the command line too."""

from slrt_dask.cli.application import main

main()
