//! The table of all operations: what the signature of a handler does not say.

/// What people must be told about an operation.
pub(super) struct Operation {
    /// The handler, as the table of routes calls it.
    pub(super) handler: &'static str,
    /// What it does, in one sentence.
    pub(super) summary: &'static str,
    /// The statuses that the handler itself chooses: those of success where its type leaves that open, and those of
    /// errors that come from what it does, not from what it takes.
    pub(super) statuses: &'static [u16],
}

const fn operation(handler: &'static str, summary: &'static str, statuses: &'static [u16]) -> Operation {
    Operation { handler, summary, statuses }
}

/// Every operation, in the order of the routes.
pub(super) const OPERATIONS: &[Operation] = &[
    operation("probes::live", "Answers as long as the process runs.", &[]),
    operation("probes::ready", "Answers while the replica takes traffic.", &[]),
    operation("probes::metrics", "Returns the metrics in the text format of Prometheus.", &[]),
    operation("openapi::serve", "Returns this document.", &[]),
    operation("asyncapi::serve", "Returns the AsyncAPI document of the socket.", &[]),
    operation("ws::upgrade", "Opens a WebSocket, by a ticket or for a program with an access token.", &[]),
    operation("tickets::mint", "Mints a ticket, which opens one WebSocket.", &[201]),
    operation("auth::register", "Makes an account, where that is on, and signs its owner in.", &[201, 401, 404, 409]),
    operation("auth::login", "Signs a user in.", &[401]),
    operation("auth::refresh", "Gives the next tokens of a session.", &[401]),
    operation("auth::logout", "Signs the caller out, here or everywhere.", &[204]),
    operation("auth::me", "Says who the caller is and what they may do.", &[]),
    operation("auth::sessions", "Lists the caller's own sessions.", &[]),
    operation("auth::end_session", "Ends one of the caller's own sessions.", &[204, 404]),
    operation("auth::set_password", "Changes the caller's own password and ends their other sessions.", &[204, 404]),
    operation("users::create", "Makes a user.", &[201]),
    operation("users::list", "Lists users in the order of their identities.", &[]),
    operation("users::get", "Returns a user.", &[404]),
    operation("users::update", "Edits a user, unless somebody did in between.", &[404, 409]),
    operation("users::delete", "Deletes a user with all their sessions.", &[204, 404]),
    operation("users::set_password", "Sets the password of a user and ends their sessions.", &[204, 404]),
    operation("users::sessions", "Lists the sessions of a user.", &[404]),
    operation("users::end_sessions", "Ends all sessions of a user.", &[204, 404]),
    operation("hooks::receive", "Takes a signed webhook, which makes a run of the task.", &[202, 409, 422]),
    operation("tasks::create", "Creates a task.", &[201]),
    operation("tasks::list", "Lists tasks in the order of their creation.", &[]),
    operation("tasks::preview", "Shows what a schedule will do.", &[]),
    operation("bulk::create_tasks", "Creates up to 10,000 tasks in one commit, with an outcome for each.", &[]),
    operation("named_tasks::get", "Finds a task by name.", &[404]),
    operation("named_tasks::put", "Makes the task of this name, or replaces its definition.", &[201, 409]),
    operation("tasks::get", "Returns a task.", &[404]),
    operation("tasks::update", "Replaces the definition of a task, unless somebody edited it in between.", &[404, 409]),
    operation("tasks::delete", "Deletes a task; its runs stay.", &[204, 404]),
    operation(
        "triggers::trigger",
        "Makes a run of a task or finds the active one with the same key, and waits for its end if asked to.",
        &[201, 202, 404],
    ),
    operation("tasks::pause", "Takes the schedule of a task out of force.", &[404]),
    operation("tasks::resume", "Puts the schedule of a task in force again.", &[404]),
    operation("tasks::skips", "Lists the occurrences of a task that did not run, newest first.", &[404]),
    operation(
        "occurrences::list",
        "Lists the occurrences of a task, newest first: the run of each, or why there is none.",
        &[404],
    ),
    operation(
        "webhook_secrets::create",
        "Makes a secret for the webhooks of a task and shows it, this one time.",
        &[201, 404],
    ),
    operation("webhook_secrets::list", "Lists the secrets of a task, oldest first, without showing them.", &[404]),
    operation("webhook_secrets::delete", "Deletes a secret of a task at once.", &[204, 404]),
    operation("runs::list", "Lists runs, newest first.", &[]),
    operation("bulk::trigger_runs", "Makes up to 10,000 runs in one commit, with an outcome for each.", &[]),
    operation("runs::redrive", "Queues many ended runs again, oldest first.", &[]),
    operation("runs::get", "Returns a run.", &[404]),
    operation("runs::cancel", "Cancels a run, or asks whoever executes it to stop.", &[202, 404, 409]),
    operation("runs::retry", "Queues an ended run again.", &[202, 404, 409]),
    operation("work::lease", "Leases runs of a pool to an external worker, which may wait for some.", &[]),
    operation("work::heartbeat", "Prolongs the lease of a run that goes on.", &[404, 409]),
    operation("work::finish", "Takes the report that a run has succeeded.", &[404, 409]),
    operation("work::fail", "Takes the report that an attempt has failed.", &[404, 409]),
    operation("work::release", "Takes a run back untouched.", &[404, 409]),
    operation("rooms::create", "Creates a room.", &[201]),
    operation("rooms::list", "Lists rooms by name.", &[]),
    operation("rooms::get", "Returns a room.", &[404]),
    operation("rooms::delete", "Deletes a room with its events.", &[204, 404]),
    operation("rooms::presence", "Tells who shows themselves in a room.", &[404]),
    operation("events::publish_to_room", "Publishes one event or a batch to a room.", &[201, 404]),
    operation("events::history", "Returns the events of a room after an offset, oldest first.", &[404]),
    operation("events::publish_to_user", "Publishes one event or a batch to all sockets of a user.", &[201, 404]),
    operation("sessions::list", "Lists the open sockets of all replicas, oldest first.", &[]),
    operation("sessions::kick", "Closes a socket for good, whichever replica serves it.", &[204, 404]),
    operation("limits::take", "Takes units from a rate limit, if it has them.", &[]),
    operation("instances::list", "Lists the replicas that are alive, oldest first.", &[]),
    operation("settings::fleet", "Returns the settings that every replica obeys.", &[]),
    operation(
        "settings::put_fleet",
        "Replaces the settings that every replica obeys, unless somebody did in between.",
        &[409],
    ),
    operation("api_keys::create", "Makes an API key and shows its secret, this one time.", &[201]),
    operation("api_keys::list", "Lists all API keys, without their secrets.", &[]),
    operation("api_keys::revoke", "Revokes an API key at once.", &[204, 404]),
    operation(
        "outbox::failed",
        "Lists what applications have left in their transactions and could not take effect, newest first.",
        &[],
    ),
    operation("test_clock::show", "Tells where the test clock stands and what is due next.", &[409]),
    operation(
        "test_clock::advance",
        "Moves the test clock forward, instant by instant, and lets what becomes due on the way run to its end.",
        &[409],
    ),
    operation("audit::list", "Lists the audit log, newest first.", &[]),
    operation("audit::export", "Returns the whole audit log as one JSON text a line, oldest first.", &[]),
];
