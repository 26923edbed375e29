//! The client for browsers, as browsers fetch it.

use crate::harness::{ORIGIN, Replica};

const FILES: [(&str, &str, &str); 2] = [
    ("/sdk/switchboard.js", "text/javascript; charset=utf-8", include_str!("../../sdk/switchboard.js")),
    ("/sdk/switchboard.d.ts", "application/typescript; charset=utf-8", include_str!("../../sdk/switchboard.d.ts")),
];

#[tokio::test]
async fn everybody_gets_the_files_and_pages_of_allowed_origins_may_run_them() {
    let replica = Replica::boot().await;
    for (path, media_type, text) in FILES {
        let answer = replica.send("GET", path, "", &[("origin", ORIGIN)]).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, text), "{path}");
        assert_eq!(answer.header("content-type"), Some(media_type));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("cache-control"), Some("no-cache"));
        assert_eq!(answer.header("access-control-allow-origin"), Some(ORIGIN));
        let foreign = replica.send("GET", path, "", &[("origin", "https://evil.example")]).await;
        assert_eq!(foreign.header("access-control-allow-origin"), None);
    }
}

#[tokio::test]
async fn a_file_that_the_browser_has_is_not_sent_again() {
    let replica = Replica::boot().await;
    let mut tags = Vec::new();
    for (path, ..) in FILES {
        let tag = replica.send("GET", path, "", &[]).await.header("etag").unwrap().to_owned();
        for known in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".to_owned()] {
            let answer = replica.send("GET", path, "", &[("if-none-match", &known)]).await;
            assert_eq!((answer.status, answer.text().as_str()), (304, ""), "{known}");
            assert_eq!(answer.header("etag"), Some(tag.as_str()));
        }
        assert_eq!(replica.send("GET", path, "", &[("if-none-match", "\"other\"")]).await.status, 200);
        tags.push(tag);
    }
    assert_ne!(tags[0], tags[1]);
}
