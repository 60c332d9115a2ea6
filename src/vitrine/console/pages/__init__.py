"""The pages; each module registers its own."""

from vitrine.console.pages import edit, overview, pipeline

PAGES = (overview, pipeline, edit)
