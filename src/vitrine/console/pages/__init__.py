"""The pages; each module registers its own."""

from vitrine.console.pages import access, lineage, overview, runners, trace

PAGES = (overview, lineage, trace, runners, access)
