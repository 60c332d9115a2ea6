"""`python -m vitrine` is the command `vitrine`."""

from vitrine.cli import main

main()
