//! What bringing a schema up to date did.

/// The versions of the schema before and after migrating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrateReport {
    /// The newest version that was applied before; 0 for an empty database.
    pub before: i64,
    /// The newest version that is applied now.
    pub after: i64,
    /// The newest version that this binary knows; older than `after` when a newer release migrated.
    pub known: i64,
}
