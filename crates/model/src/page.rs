//! Keyset pages: every list is read forward by an opaque cursor.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most rows one page holds.
pub const MAX_PAGE: u32 = 500;

/// Which page of a list is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Where the previous page ended, if this is not the first.
    pub after: Option<String>,
    /// The most rows to return, 1 to [`MAX_PAGE`].
    pub limit: u32,
}

impl Default for PageRequest {
    fn default() -> Self {
        Self { after: None, limit: 50 }
    }
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}Page")]
pub struct Page<T> {
    /// The rows, in the order of the list.
    pub items: Vec<T>,
    /// Asks for the next page; absent on the last.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// Builds a page from rows read with a limit one above the page size.
    #[must_use]
    pub fn from_rows(mut rows: Vec<T>, limit: u32, cursor: impl Fn(&T) -> String) -> Self {
        let limit = limit as usize;
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let next_cursor = if has_more { rows.last().map(cursor) } else { None };
        Self { items: rows, next_cursor }
    }

    /// Converts every row.
    #[must_use]
    pub fn map<U>(self, convert: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(convert).collect(), next_cursor: self.next_cursor }
    }
}
