"""Every text of the console."""

PRODUCT = "Vitrine"

# login
LOG_IN = "Log in"
LOG_OUT = "Log out"
TOKEN = "Access token"  # noqa: S105  a label
TOKEN_HELP = "An administrator creates one with <code>vitrine token create NAME --role viewer</code>."  # noqa: S105
WRONG_TOKEN = "This token is not valid. It may be revoked or expired; ask an administrator for a new one."  # noqa: S105
TOO_MANY_FAILURES = "Too many wrong tokens. Wait a few seconds, then try again."
LOG_IN_FIRST = "log in at /console/login first"
OTHER_ORIGIN = "a page of another site may not use the console; open it at its own address"
SESSION_ENDED = "the session has ended, or its token was revoked; log in again"
STORE_UNAVAILABLE = "The database of Vitrine does not respond. Check that PostgreSQL is running."
TRY_AGAIN = "Try again"
TOO_MANY_PAGES = "too many pages of the console are open; close some of them"

# frame
SKIP = "Skip to the content"
MENU = "Menu"
OVERVIEW = "Overview"
LINEAGE = "Lineage"
TRACE = "Trace"
RUNNERS = "Runners"
ACCESS = "Access"
THEME = "Light or dark"
ZONE = "Times in"
UPDATED = "updated"
CLOSE = "Close"
CANCEL = "Cancel"
COPY = "Copy"
COPIED = "Copied"
ANONYMOUS = "no login"
ANONYMOUS_HELP = "There are no access tokens yet, so that everybody on this machine is an administrator."
NOT_UPDATED = "What you see may be old: {reason}. Trying again."
CONNECTION_LOST = "The connection to the server is lost. Trying to connect again."
FORBIDDEN = "You may not open this page."
NEEDS_ROLE = "It needs the role {role}. An administrator can create a token with this role."
NOT_FOUND = "There is no such page."

# states
STATUS = {
    "IDLE": "Idle",
    "RUN_REQUESTED": "Waiting",
    "RUNNING": "Running",
    "PAUSE_REQUESTED": "Pausing",
    "PAUSED": "Paused",
    "FAILED": "Failed",
}
RUN_STATUS = {
    "RUNNING": "Running",
    "SUCCESS": "Success",
    "FAILED": "Failed",
    "PAUSED": "Paused",
    "ABANDONED": "Abandoned",
}
DISABLED = "Disabled"
INVALID = "Invalid"
LATE = "Late"
FRESH = "Fresh"

# overview
ALL = "All"
WAITING = "Waiting"
SEARCH = "Search name, target or owner"
OWNER = "Owner"
TAG = "Tag"
GROUP_BY = "Group by"
NO_GROUP = "No groups"
ANY = "Any"
RESET_FILTERS = "Reset filters"
MART = "Mart"
STATE = "Status"
FRESHNESS = "Freshness"
LAST_RUN = "Last run"
ROWS = "Rows"
RECENT = "Last 30 runs"
NEXT_DUE = "Next due"
NEXT_PAGE = "Next {count}"
FIRST_PAGE = "First page"
NEVER_RUN = "never run"
NO_SCHEDULE = "on request"
NEVER_BUILT = "never built"
PROMISE = "promise {duration}"
NO_PROMISE = "no promise"
RUN_FILTERED = "Run all"
PAUSE_FILTERED = "Pause all"
RESUME_FILTERED = "Resume all"
BULK_TITLE = {
    "run": "Run {count} pipelines?",
    "pause": "Pause {count} pipelines?",
    "resume": "Resume {count} pipelines?",
}
BULK_TITLE_ONE = {"run": "Run 1 pipeline?", "pause": "Pause 1 pipeline?", "resume": "Resume 1 pipeline?"}
BULK_EXPLAINED = {
    "run": "Each of them gets a run request. One that runs already is run once more afterwards.",
    "pause": "Each of them stops after its current batch, and its schedule starts no run until it is resumed.",
    "resume": "Each paused one continues from its checkpoint; each other one gets a run request.",
}
BULK_DONE = "{changed} done, {refused} refused"
BULK_REFUSED = "Refused:"
NOTHING_MATCHES = "No pipeline matches these filters."
NO_PIPELINES = "There are no pipelines yet."
NO_PIPELINES_HELP = (
    "A pipeline reads a query of a source and keeps a mart up to date. Create the first one from a YAML file:"
)
FIRST_COMMANDS = "vitrine discover --source default\nvitrine apply pipelines.yaml"
RUNS_SUMMARY = "{runs} runs, {failed} failed, longest {longest}"
MARTS_CAPTION = "Pipelines and their marts"
HEALTH = "Health"
RUNNERS_ALIVE = "Runners"
NO_RUNNER = "none alive: start one with `vitrine runner`"
QUEUE = "Queue"
RUNNING = "Running"
DATABASE = "Database"
DATABASE_OK = "responds"
HORIZON = "Horizon lag"
HORIZON_OK = "no checkpoint waits"
HORIZON_HELD = "{pipeline} waits for {blocker}"
OLDEST = "oldest {duration}"

LATE_PAUSED = "paused: resume it"
LATE_WAITING = "waits for a runner"
LATE_RUNNING = "a run is under way"
LATE_IDLE = "nothing runs it: no schedule, and no request"
LATE_DUE = "the next scheduled run has not started"
SCHEDULE = "schedule {schedule}"
AFTER = "after {names}"
COUNTERS = "Pipelines by state"
COUNTER_LABELS = {
    "": ALL,
    "running": STATUS["RUNNING"],
    "waiting": STATUS["RUN_REQUESTED"],
    "failed": STATUS["FAILED"],
    "late": LATE,
    "paused": STATUS["PAUSED"],
    "disabled": DISABLED,
}
BY_OWNER = "Group by owner"
BY_TAG = "Group by tag"
NO_GROUPS = "No pipeline has one. Give pipelines an owner or tags in their definitions."
REMOVE_FILTER = "Remove the filter {filter}"
BULK = {"run": RUN_FILTERED, "pause": PAUSE_FILTERED, "resume": RESUME_FILTERED}
HEALTH_LABELS = {
    "runners": RUNNERS_ALIVE,
    "queue": QUEUE,
    "running": RUNNING,
    "database": DATABASE,
    "horizon": HORIZON,
}
MARTS = {
    "caption": MARTS_CAPTION,
    "mart": MART,
    "state": STATE,
    "freshness": FRESHNESS,
    "last_run": LAST_RUN,
    "rows": ROWS,
    "recent": RECENT,
    "next_due": NEXT_DUE,
    "late": LATE,
    "never_built": NEVER_BUILT,
    "never_run": NEVER_RUN,
    "summary": RUNS_SUMMARY,
}

# lineage
SEARCH_NODE = "Search a table, mart or pipeline"
VIEW = "View"
AS_GRAPH = "Graph"
AS_LIST = "List"
SHOW_ALL = "Show everything"
CHOSEN = "Chosen node"
CHOOSE_NODE = "Choose where to start."
CHOOSE_NODE_HELP = (
    "There are {count} tables, pipelines and targets, too many for one picture. Search for one of them; the page shows"
    " what is directly before and after it."
)
NO_NODE = "No table or pipeline has this text in its name."
KINDS = {"table": "table", "reader": "Python reader", "pipeline": "pipeline"}
INDEX = "index"
MART_TABLE = "mart"
TABLE_OF = "table of source {source}"
PIPELINES = "Pipelines"
SOURCE_TABLES = "Source tables"
TARGETS = "Marts and indexes"
NODES_SHOWN = "{shown} of {all} shown"
UNREAD = "{count} queries not read yet"
LINEAGE_CUT = "only the first 20 000 pipelines"
LEGEND_FAILED = "a pipeline failed here or before"
LEGEND_LATE = "a mart is older than promised here or before"
OPEN_PIPELINE = "Open pipeline"
COMES_FROM = "Comes from"
GOES_TO = "Goes to"
NOTHING = "nothing"
AND_MORE = "and {count} more"
OWN_TROUBLE = {"failed": "The last run failed.", "late": "The mart is older than promised."}
BEHIND = {
    "failed": "May be old: {pipeline}, on the way to it, has failed.",
    "late": "May be old: {pipeline}, on the way to it, is late.",
}
LINEAGE_TEXTS = {
    "graph": "Tables, pipelines, marts and indexes; a click on a node shows more around it",
    "list": "Pipelines with what they read and write",
    "pipeline": "Pipeline",
    "state": STATE,
    "reads": "Reads",
    "writes": "Writes",
}
