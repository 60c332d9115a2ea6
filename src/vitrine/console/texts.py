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
TOO_MANY_PAGES = "Too many pages of the console are open. Close some of them."

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
NO_RESPONSE = "the database does not respond"
CALL_FAILED = "An unexpected error has occurred; the log of the API has the details."
UNEXPECTED = "a part of this page could not be read; see the log of the API"
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
WHEN_ENABLED = "when it is enabled"
WHEN_RESUMED = "when it is resumed"
WHEN_RUN_AGAIN = "when it is run again"
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
BULK_WORKING = "Working on {count} …"
BULK_PROGRESS = "{done} of {count} …"
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
DATABASE_SILENT = "does not respond"
HORIZON = "Horizon lag"
HORIZON_OK = "no checkpoint waits"
HORIZON_HELD = "{pipeline} waits for {blocker}"
OLDEST = "oldest {duration}"

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
GROUPS = "Owners or tags"
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

# one pipeline
SOURCE = "Source"
TRANSFORM = "Transform"
TARGET = "Target"
PLATFORM = "Platform"
RUN = "Run"
FULL_RUN = "Full run"
PAUSE = "Pause"
RESUME = "Resume"
RELOAD = "Reload"
RELOAD_HELP = "Apply the stored batch size and throttle to the run under way"
VERIFY = "Verify"
REPAIR = "Repair"
REPLAY = "Replay"
ENABLE = "Enable"
DISABLE = "Disable"
REQUESTED = "Requested: {pipeline}"
PAUSED_DONE = "Pause requested"
RELOADED = "The stored configuration is used from the next batch on"
ENABLED_DONE = "Enabled"
DISABLED_DONE = "Disabled"
FULL_RUN_TITLE = "Read everything of {name} again?"
FULL_RUN_EXPLAINED = (
    "Once, the incremental pipeline reads its whole source and removes rows of {target} that vanished there. The old"
    " rows stay visible until the new ones are complete."
)
DISABLE_TITLE = "Disable {name}?"
DISABLE_EXPLAINED = "A run under way stops after its current batch. No schedule and no request starts another one."
REPAIR_TITLE = "Repair {target}?"
REPAIR_EXPLAINED = (
    "Every value is compared with the source. Keys that are missing or differ are read and written again; keys that the"
    " source no longer has are deleted, within max_delete_ratio."
)
NO_PIPELINE = "There is no pipeline {name}."
NO_PIPELINE_HELP = "It may have been deleted or renamed. The overview has every pipeline."
FACT_FRESH = "Fresh as of"
FACT_PROMISE = "Promise"
FACT_DUE = "Next due"
FACT_SUCCESS = "Last run"
FACT_VERIFIED = "Verified until"
FACT_MODE = "Mode"
NEVER_VERIFIED = "never"
PROGRESS = "Run under way"
PROGRESS_ROWS = "{read} of about {expected} rows"
PROGRESS_ROWS_UNKNOWN = "{read} rows"
RATE = "{rate} rows/s"
TIME_LEFT = "{left} left"
BATCHES = "{count} batches"
ON_RUNNER = "on {runner}"
ERROR = "Last error"
ERROR_REMEDY = "Correct the cause, then run the pipeline again. docs/pipelines.md lists every code."
TIMELINE = "Timeline"
OLDER = "Older"
NO_EVENTS = "Nothing has happened yet. Run the pipeline, and its history begins."
CHART_DURATION = "Duration"
CHART_ROWS = "Rows read"
LEGEND_PROMISE = "promise: at most {duration}"
LEGEND_PROMISE_NOW = "promise by the schedule, at the moment: at most {duration}"
CHART_FRESHNESS = "Age before each update"
NO_AGES = "from the second update on"
NO_RUNS = "no runs yet"
LOG = "Log"
LOG_OF = "Log of run {run}"
LOG_TITLE = "Log of run {run}"
WHY_LATE = "Late: {reason}"
LOG_EMPTY = "This run has written no lines, or they are not kept any more."
LOG_DROPPED = "{count} earlier lines are not kept."
CHECKPOINT = "Checkpoint"
NO_CHECKPOINT = "None yet: the next run reads from the beginning."
CURSOR = "Cursor"
GENERATION = "Generation"
GENERATION_OPEN = "{generation}, a load is unfinished: {rows} rows"
BATCH_SEQ = "Batches saved"
HELD_BACK = "Held back by"
SAVED_AT = "Saved"
DEFINITION = "Definition"
VERSION = "version {version}"
FIELD = "Field"
VALUE = "Value"
ONLY_DIFFERENT = "Only what differs from the default is listed."
TASK_PLAN = "Task plan"
REJECTS = "Quarantine"
NO_REJECTS = "No row is in quarantine."
REJECTS_HELP = "These rows do not fit the target. Correct the source or the transform, then replay them."
KEY = "Key"
COLUMN = "Column"
REASON = "Reason"
SINCE = "Since"
MORE_REJECTS = "Only the first {count} are shown; `vitrine rejects` lists all."
RECONCILE = "Reconcile"
NO_RECONCILE = "The mart was never compared with its source value by value. Verify does that as a run."
EQUAL = "Equal"
DIFFERENT = "Different"
MISSING_KEYS = "Missing"
EXTRA_KEYS = "Extra"
DIFFERENT_KEYS = "Different"
REPAIRED = "repaired"
KEYS_MORE = "and {count} more"
UPSTREAMS = "Runs after"
TRIGGERS = {
    "api": "by request",
    "cli": "from the command line",
    "console": "from the console",
    "schedule": "by schedule",
    "chain": "after its upstreams",
}
KINDS = {
    "full": "Full load",
    "incremental": "Incremental run",
    "rollback": "Rollback",
    "backfill": "Backfill",
    "reconcile": "Reconcile",
    "replay": "Replay of rejects",
    "resend": "Resend of one key",
}
OPERATIONS = {
    "pipelines.create": "Created",
    "pipelines.change": "Changed",
    "pipelines.detach_file": "Detached from its file",
    "pipelines.run": "Run requested",
    "pipelines.full": "Full run requested",
    "pipelines.resume": "Resumed",
    "pipelines.pause": "Paused",
    "pipelines.reload": "Reloaded",
    "pipelines.rollback": "Rollback requested",
    "pipelines.backfill": "Backfill requested",
    "pipelines.reconcile": "Reconcile requested",
    "pipelines.replay": "Replay requested",
    "pipelines.resend": "Resend requested",
    "state.reset": "State reset",
    "state.rewind": "Checkpoint rewound",
}
BY = "by {actor} ({via})"
TIMELINE_TEXTS = {"log": LOG, "log_of": LOG_OF}
PIPELINE = "Pipeline"
QUERY = "query"
CHECKS = "Checks"
ROWS_NOT_CHECKED = "{names}: the last run has checked no rows."
PASSED = "Passed"
BROKEN = {"fail": "Failed", "warn": "Warning"}

# new and edit
NEW = "New pipeline"
EDIT = "Edit"
EDIT_TITLE = "Edit {name}"
NEW_HELP = "A pipeline reads one query and keeps a mart up to date. Nothing is stored before you save."
FORM = "Form"
YAML = "YAML"
EDIT_AS = "Edit as"
ONLY_YAML = "It has a task plan, or a reader in place of a query, so it is edited as YAML."
MORE_THAN_FORM = "It has fields that the form does not show, such as tasks or source_type; edit it as YAML."
YAML_NOT_VALID = "The form cannot show this text: {reason}"
SAVE = "Save"
SAVE_ANYWAY = "Save without asking source and target"
SAVED = "'{name}' is saved"
SAVED_WITH = "'{name}' is saved. {warnings}"
PREVIEW = "Preview"
PREVIEW_CAPTION = "First rows after the transforms"
PREVIEW_HELP = "Shows the first rows as the mart would receive them. Nothing is written."
PREVIEW_ROWS = "{rows} rows"
PREVIEW_READ = "{read} rows of the source were read"
PREVIEW_CUT = {"rows": "there may be more rows", "size": "the rest is too large to show"}
PREVIEW_EMPTY = "The query returns no rows."
PLAN_CARD = "Plan"
PLAN_TARGET = "target {target}"
PLAN_REBUILDS = "a full load builds it again"
PLAN_CHANGES = "changes {fields}"
PLAN_NO_CHANGES = "no field changes"
PLAN_ADDED = "{count} added"
PLAN_CHANGED = "{count} changed"
PLAN_REMOVED = "{count} removed"
PLAN_COLUMN_COUNT = "{column}: {count} rows"
PLAN_KEYS_ADDED = "added keys such as {keys}"
PLAN_KEYS_CHANGED = "changed keys such as {keys}"
PLAN_KEYS_REMOVED = "removed keys such as {keys}"
PLAN_SECONDS = "about {duration}"
COLUMN_CHANGES = {"added": "New column", "lost": "Lost column", "retyped": "Other type"}
CHECKPOINT_BADGE = "Checkpoint"
PLAN_HELP = "Compares the rows of this definition with the live mart. Nothing is written."
FINDINGS = "Findings"
CHECKING = "Checking …"
NOT_CHECKED_YET = "Checked while you type."
READY = "Ready: {columns} columns, key {key}, {rows}"
READY_ROWS = "about {rows} rows"
READY_ROWS_UNKNOWN = "number of rows unknown"
NO_KEY = "none"
TARGET_NEW = "the first run creates the target"
LEVELS = {"error": "Error", "missing": "Missing", "warning": "Warning", "note": "Note"}
LEVEL_TONES = {"error": "failed", "missing": "idle", "warning": "late", "note": "idle"}
AT_PLACE = "line {line}, column {column}"
GO_TO_PLACE = "Go to line {line}, column {column}"
NAME_NEEDED = "name: give the pipeline a name, such as top_genres"
NAME_FORM = "name: start with a letter, then use only lower-case letters, digits and _; at most 63 characters"
QUERY_NEEDED = "source_query: type a query, such as SELECT id, name FROM content.genre"
QUERY_CARD = "Query"
QUERY_HINT = "Ctrl+Space completes names. Esc, then Tab, leaves the editor."
MART_CARD = "Mart"
RUNS_CARD = "Runs"
MORE_CARD = "Description and options"
YAML_CARD = "The same as YAML"
FIELD_NAME = "Name"
FIELD_DESCRIPTION = "Description"
FIELD_OWNER = "Owner"
FIELD_TAGS = "Tags"
TAGS_EXAMPLE = "search, tier-1"
FIELD_SOURCE = "Source"
FIELD_TRANSFORM = "Transform"
NO_TRANSFORM = "No transform"
FIELD_TARGET = "Target"
TARGET_DEFAULT = "analytics.<name>"
FIELD_MODE = "Mode"
MODES = {"full": "Full: reads everything", "incremental": "Incremental: reads changes"}
FIELD_CURSOR = "Incremental key"
FIELD_TIE = "Incremental id key"
FIELD_KEY = "Key columns"
KEY_EXAMPLE = "id; empty: of the target"
FIELD_BATCH = "Batch size"
FIELD_SCHEDULE = "Schedule"
SCHEDULE_EXAMPLE = "5m; or 0 6 * * MON-FRI"
FIELD_AFTER = "Runs after"
AFTER_EXAMPLE = "film_dim, genre_dim"
FIELD_ENABLED = "Enabled"
FIELD_OPTIONS = "Options as YAML, only those that differ from the default"
OPTIONS_EXAMPLE = "on_reject: quarantine"
FIELD_CHECKS = "Checks as YAML, a list"
CHECKS_EXAMPLE = "- type: not_null\n  columns: [id, title]\n- type: row_count\n  min: 1000"
CHECKS_HINT = "Rules that rows must obey before readers see them."
SUGGESTIONS = "Suggestions"
SUGGEST_KEY = "Key {columns}"
SUGGEST_KEY_HELP = "Key of {table}"
SUGGEST_CURSOR = "Incremental by {column}"
SUGGEST_CURSOR_HELP = "{table}: {reasons}; ties by {tie}"
SHOWN_TABLES = "Completion knows the first {count} tables of the source."
CONFLICT = "Not saved: the pipeline has changed since you opened this page"
CONFLICT_HELP = (
    "Your text is kept. Between the version that you opened and the stored one, these fields differ: {fields}."
)
CONFLICT_SAME = "Your text is kept. The stored definition is equal to the one that you opened."
SAVE_OVER = "Save mine over version {version}"
TAKE_STORED = "Discard mine and open version {version}"
TAKE_STORED_EXPLAINED = "What you typed on this page is lost."
STATE_CHOICE = "What happens to the checkpoint?"
STATE_CHOICE_HELP = "The pipeline has a checkpoint, and you change {fields}."
GONE = "'{name}' was deleted since you opened this page. Your text is kept; copy its YAML to create it again."
STATE_KEEP = "Keep the checkpoint"
STATE_KEEP_HELP = (
    "The next run continues where the last one ended. Rows that are in the mart stay as the old query made them, until"
    " they change at the source."
)
STATE_RESET = "Reset the checkpoint"
STATE_RESET_HELP = "The next run reads everything again with the new definition."
MANAGED = "Managed by the file {file}"
APPLIED = "applied"
CHANGED_SINCE = "Changed since"
MANAGED_HELP = "It is shown read-only. Change the file, then apply it:"
APPLY_COMMAND = "vitrine apply {file}"
CHANGED_SINCE_HELP = (
    "The stored definition is not the one of the file any more: it was changed by another way. The next apply of the"
    " file replaces it; to keep the change, copy the YAML below into the file."
)
EDIT_HERE = "Edit here all the same"
EDIT_HERE_TITLE = "Edit {name} here?"
EDIT_HERE_EXPLAINED = (
    "{file} does not manage this pipeline any more; for everybody, and recorded in the audit log. The file itself stays"
    " as it is: if it is applied again, it replaces what you save here."
)
KEPT = "This tab has text that was not saved."
KEPT_OLDER = (
    "This tab has text that was not saved. It was typed for version {version}; the pipeline has version {newer} now."
)
RESTORE = "Restore it"
DISCARD = "Discard it"
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
NODE_KINDS = {"table": "table", "reader": "Python reader", "pipeline": "pipeline"}
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

# runners and sources
RUNNERS_PAGE = "Runners and sources"
RUNNER = "Runner"
LAST_SEEN = "Last seen"
UP_SINCE = "Up since"
RUNS_NOW = "Runs now"
RUNNING_NOW = "Running now"
KIND = "Kind"
STARTED = "Started"
HEARTBEAT = "Heartbeat"
LEASE_ENDS = "Lease ends"
LEASE_EXPIRED = "Lease expired"
OF_EXPECTED = "of about {rows}"
ALIVE = "Alive"
SILENT = "Not seen"
SOURCES = "Sources"
CONNECTIONS = "Connections"
OF_LIMIT = "of {limit}"
NO_LIMIT = "· no limit"
SOURCE_FULL = "Full"
SOURCE_BUSY = "In use"
SOURCE_FREE = "Free"
NOT_CONFIGURED = "Not configured"
NOTHING_RUNS = "No pipeline runs at the moment."
NO_RUNNER_TITLE = "No runner is alive."
NO_RUNNER_HELP = "Requested runs wait until a runner starts. Start one on any machine that reaches the database:"
NO_RUNNER_COMMAND = "vitrine runner"
CONNECTIONS_HELP = (
    "A run holds at most two connections to its source. VITRINE_SOURCE_CONNECTIONS__<NAME> limits them over all"
    " runners; further runs wait."
)
RUNNERS_CUT = "Only the runners seen last and the longest runs are shown."

# access
TOKENS = "Access tokens"
NEW_TOKEN = "New token"  # noqa: S105  a label
TOKEN_NAME = "Name of the person or program"  # noqa: S105  a label
NAME = "Name"
ROLE = "Role"
ROLES = {"viewer": "viewer", "operator": "operator", "admin": "admin"}
VALID_FOR = "Valid for"
TTLS = {"7d": "7 days", "30d": "30 days", "90d": "90 days", "365d": "1 year"}
CREATE_TOKEN = "Create token"  # noqa: S105  a label
CREATED = "Created"
CREATED_BY = "by {name}"
EXPIRES = "Expires"
LAST_USED = "Last used"
REVOKE = "Revoke"
REVOKE_NAMED = "Revoke the token {name}"
REVOKE_TITLE = "Revoke the token {name}?"
REVOKE_EXPLAINED = (
    "Programs that use it are refused from now on, and its open pages are closed. A revoked token cannot be restored."
)
REVOKE_OWN = "It is the token that you are logged in with: you will be logged out."
REVOKED = "The token {name} is revoked."
TOKEN_CREATED = "The token {name} is created."  # noqa: S105  a text
TOKEN_ONCE = "Copy it now: it is shown once, and stored only as a hash."  # noqa: S105  a text
ONCE_AND_LOG_IN = (
    "Copy it now: it is shown once, and stored only as a hash. From now on everybody needs a token, and so do you:"
    " log in with this one."
)
HIDE_TOKEN = "Hide it"  # noqa: S105  a label
GO_TO_LOGIN = "I have copied it: log in"
LOG_IN_WITH_FIRST = "From now on everybody needs a token: copy the one below, and log in with it."
FIRST_IS_ADMIN = "The first token must have the role admin: only an administrator can create the next one."
NO_TOKENS = "There are no tokens yet."
NO_TOKENS_HELP = (
    "Until the first one is created, the API serves this machine only, and everybody on it is an administrator."
    " Create a token with the role admin, then one for each person and program."
)
AUDIT = "Audit log"
AT = "Time"
ACTOR = "Who"
OPERATION = "Operation"
CHANGE = "Change"
FILTER_BY = "Filter by: {field}"
NO_ENTRIES = "There is no entry with these filters."
NEWEST = "Newest"

# trace
TRACE_TITLE = "Why is this row wrong?"
TRACE_HELP = (
    "Paste the key of a row, for example the id of a film; a key of several columns as cells of one row of a sheet. The"
    " trace reads it at the source, passes it through the transforms, compares it with the target, and writes nothing."
)
TRACE_KEY = "Key of the row"
TRACE_ROW = "Trace"
TRACE_MISSING = "Give the name of a pipeline and the key of a row."
TRACING = "Reading source and target …"
TRACE_CAPTION = "The row on its way, column by column"
DIFFERS = "differs"
REMEDY = "What to do"
CURSOR_AND_CHECKPOINT = "Cursor of the row: {cursor}. Checkpoint: {checkpoint}."
COMPARED_BY_TEXTS = "Compared by texts only: {reason}"
SEVERAL_ROWS = "{side} has {count} rows with this key; the first one is shown."
RESEND = "Send again"
RESEND_TITLE = "Send {key} of {pipeline} again?"
RESEND_EXPLAINED = (
    "A run reads this key once more and writes it to {target}. The checkpoint stays, and a row that the source does not"
    " have is not deleted."
)
RESENT = "Requested. Trace the row again when the run has ended."
STANDINGS = {
    "equal": "Equal",
    "waiting": "Waiting",
    "blocked": "Blocked",
    "quarantined": "In quarantine",
    "cursor_not_moved": "Cursor has not moved",
    "missing": "Missing",
    "deleted_at_source": "Deleted at the source",
    "filtered": "Removed by a transform",
    "transform_fails": "A transform fails",
    "repeated": "Repeated",
    "null_cursor": "No cursor value",
    "not_found": "Not found",
}
