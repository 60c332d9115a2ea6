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
NO_RESPONSE = "the database does not respond"
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
CHART_FRESHNESS = "Age of the mart before each update"
NO_RUNS = "no runs yet"
LOG = "Log"
LOG_OF = "Log of run {run}"
LOG_TITLE = "Log of run {run}"
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
PLAN = "Task plan"
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
NOT_CHECKED = "{names}: the last run has checked no rows."
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
MORE_THAN_FORM = "It has fields that the form does not show, such as tasks or checks; edit it as YAML."
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
KEY_EXAMPLE = "id; of an existing target: its key"
FIELD_BATCH = "Batch size"
FIELD_SCHEDULE = "Schedule"
SCHEDULE_EXAMPLE = "5m; or 0 6 * * MON-FRI"
FIELD_AFTER = "Runs after"
AFTER_EXAMPLE = "film_dim, genre_dim"
FIELD_ENABLED = "Enabled"
FIELD_OPTIONS = "Options as YAML, only those that differ from the default"
OPTIONS_EXAMPLE = "on_reject: quarantine"
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
STATE_KEEP = "Keep the checkpoint"
STATE_KEEP_HELP = (
    "The next run continues where the last one ended. Rows that are in the mart stay as the old query made them, until"
    " they change at the source."
)
STATE_RESET = "Reset the checkpoint"
STATE_RESET_HELP = "The next run reads everything again with the new definition."
KEPT = "This tab has text that was not saved."
RESTORE = "Restore it"
DISCARD = "Discard it"
OPEN_PIPELINE = "Open the pipeline"
