"""The pages; each module registers its own."""

from vitrine.console.pages import access, lineage, overview, pipeline, runners, trace

PAGES = (overview, pipeline, lineage, trace, runners, access)
