"""The pages; each module registers its own."""

from vitrine.console.pages import access, edit, lineage, overview, pipeline, runners, trace

PAGES = (overview, pipeline, edit, lineage, trace, runners, access)
