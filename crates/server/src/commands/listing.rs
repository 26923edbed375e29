//! Lists of the API as one: pages are read until there are enough rows.

use anyhow::Result;
use switchboard_model::page::{MAX_PAGE, Page, PageRequest};

use crate::cli::Limit;
use crate::output;

/// Reads rows until there are enough or no more; says so when some are left out.
pub(super) async fn collect<T, E>(
    limit: Limit,
    mut read: impl AsyncFnMut(PageRequest) -> Result<Page<T>, E>,
) -> Result<Vec<T>>
where
    anyhow::Error: From<E>,
{
    let mut items = Vec::new();
    let mut after = None;
    loop {
        let missing = limit.limit.saturating_sub(items.len() as u64);
        let limit = u32::try_from(missing).map_or(MAX_PAGE, |missing| missing.min(MAX_PAGE));
        let page = read(PageRequest { after, limit }).await?;
        items.extend(page.items);
        after = page.next_cursor;
        if after.is_none() {
            return Ok(items);
        }
        if missing <= u64::from(limit) {
            say_more(items.len());
            return Ok(items);
        }
    }
}

/// Says that a list goes on after what is shown.
pub(super) fn say_more(shown: usize) {
    output::warn(format_args!("there are more than these {shown}; --limit shows more"));
}
