"""``python -m harel.cli``; with ``python -X dev`` an unexpected error shows its traceback."""

from harel.cli.app import main

main()
