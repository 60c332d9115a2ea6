"""Vitrine: configuration-driven ETL for analytical marts."""

import logging

# whoever starts a process decides where its log goes; until then it goes nowhere
logging.getLogger(__name__).addHandler(logging.NullHandler())
