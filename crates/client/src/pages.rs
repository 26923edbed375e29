//! Lists as streams: pages are read one after the other, as far as somebody asks. Knows no aggregate.

use std::future::Future;

use futures_util::{Stream, TryStreamExt as _, stream};
use switchboard_model::page::{MAX_PAGE, Page, PageRequest};

use crate::error::ClientError;

/// Goes through all rows of a list: `items(|page| client.list_tasks(page)).try_collect::<Vec<_>>()`.
pub fn items<T, F, R>(read: F) -> impl Stream<Item = Result<T, ClientError>>
where
    F: FnMut(PageRequest) -> R,
    R: Future<Output = Result<Page<T>, ClientError>>,
{
    let first = PageRequest { after: None, limit: MAX_PAGE };
    stream::try_unfold((Some(first), read), |(next, mut read)| async move {
        let Some(request) = next else { return Ok(None) };
        let page = read(request).await?;
        let next = page.next_cursor.map(|cursor| PageRequest { after: Some(cursor), limit: MAX_PAGE });
        Ok(Some((stream::iter(page.items.into_iter().map(Ok)), (next, read))))
    })
    .try_flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pages_are_read_until_the_last() {
        let read = |request: PageRequest| async move {
            let start: u32 = request.after.map_or(0, |cursor| cursor.parse().unwrap());
            let next_cursor = (start < 4).then(|| (start + 2).to_string());
            Ok(Page { items: vec![start, start + 1], next_cursor })
        };
        assert_eq!(items(read).try_collect::<Vec<_>>().await.unwrap(), [0, 1, 2, 3, 4, 5]);
    }
}
