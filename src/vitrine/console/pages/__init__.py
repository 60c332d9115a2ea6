"""The pages; each module registers its own."""

from vitrine.console.pages import overview, pipeline

PAGES = (overview, pipeline)
