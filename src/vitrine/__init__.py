"""Vitrine: configuration-driven ETL for analytical marts."""

import logging

# the command that starts the process configures logging; until then nothing is logged
logging.getLogger(__name__).addHandler(logging.NullHandler())
