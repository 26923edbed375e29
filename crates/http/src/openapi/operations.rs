//! The table of all operations: what the signature of a handler does not say.

/// What people must be told about an operation.
pub(super) struct Operation {
    /// The handler, as the table of routes calls it.
    pub(super) handler: &'static str,
    /// What it does, in one sentence.
    pub(super) summary: &'static str,
    /// The statuses that the handler itself chooses: the one of success where its type leaves that open, and
    /// those of errors that come from what it does, not from what it takes.
    pub(super) statuses: &'static [u16],
}

const fn operation(handler: &'static str, summary: &'static str, statuses: &'static [u16]) -> Operation {
    Operation { handler, summary, statuses }
}

/// Every operation, in the order of the routes.
#[rustfmt::skip]
pub(super) const OPERATIONS: &[Operation] = &[
    operation("probes::live",            "Answers as long as the process runs.",                              &[]),
    operation("probes::ready",           "Answers while the replica takes traffic.",                          &[]),
    operation("probes::metrics",         "Returns the metrics in the text format of Prometheus.",             &[]),
    operation("openapi::serve",          "Returns this document.",                                            &[]),
    operation("ws::upgrade",             "Opens a WebSocket for the holder of a ticket.",                     &[]),
    operation("tickets::mint",           "Mints a ticket, which opens one WebSocket.",                        &[201]),
    operation("tasks::create",           "Creates a task.",                                                   &[]),
    operation("tasks::list",             "Lists tasks in the order of their creation.",                       &[]),
    operation("tasks::preview",          "Shows what a schedule will do.",                                    &[]),
    operation("tasks::find",             "Finds a task by name.",                                             &[404]),
    operation("tasks::get",              "Returns a task.",                                                   &[404]),
    operation("tasks::update",           "Replaces the definition of a task.",                                &[404, 409]),
    operation("tasks::delete",           "Deletes a task; its runs stay.",                                    &[204, 404]),
    operation("tasks::trigger",          "Makes a run of a task, or finds the active one with the same key.", &[404]),
    operation("tasks::pause",            "Takes the schedule of a task out of force.",                        &[404]),
    operation("tasks::resume",           "Puts the schedule of a task in force again.",                       &[404]),
    operation("tasks::skips",            "Lists the occurrences of a task that did not run, newest first.",   &[404]),
    operation("runs::list",              "Lists runs, newest first.",                                         &[]),
    operation("runs::get",               "Returns a run.",                                                    &[404]),
    operation("runs::cancel",            "Cancels a run, or asks whoever executes it to stop.",               &[202, 404, 409]),
    operation("runs::retry",             "Queues an ended run again.",                                        &[202, 404, 409]),
    operation("rooms::create",           "Creates a room.",                                                   &[]),
    operation("rooms::list",             "Lists rooms by name.",                                              &[]),
    operation("rooms::get",              "Returns a room.",                                                   &[404]),
    operation("rooms::delete",           "Deletes a room with its events.",                                   &[204, 404]),
    operation("events::publish_to_room", "Publishes one event or a batch to a room.",                         &[201, 404]),
    operation("events::history",         "Returns the events of a room after an offset, oldest first.",       &[404]),
    operation("events::publish_to_user", "Publishes one event or a batch to all sockets of a user.",          &[201, 404]),
    operation("instances::list",         "Lists the replicas that are alive, oldest first.",                  &[]),
    operation("settings::fleet",         "Returns the settings that every replica obeys.",                    &[]),
    operation("settings::put_fleet",     "Replaces the settings that every replica obeys.",                   &[409]),
    operation("api_keys::create",        "Makes an API key and shows its secret, this one time.",             &[201]),
    operation("api_keys::list",          "Lists all API keys, without their secrets.",                        &[]),
    operation("api_keys::revoke",        "Revokes an API key at once.",                                       &[204, 404]),
];
