"""The pages; each module registers its own."""

from vitrine.console.pages import lineage, overview

PAGES = (overview, lineage)
