//! The binary as a person uses it.

use switchboard_testkit::TestDatabase;

use crate::fixtures::{err, out, switchboard};

#[test]
fn the_demo_shows_real_events_and_ends_well() {
    let output = switchboard(&["demo"], &[]);
    let text = out(&output);
    assert!(output.status.success(), "{text}{}", err(&output));
    for expected in [
        "user     ann made, with a random password",
        "sign-in  ann has an access token",
        "opened with a single-use ticket",
        "event  tick #3 in demo",
        "{\"name\":\"world\"}",
        "run    succeeded",
        "webhook  signed with a secret of task paid",
        "{\"invoice\":4711}",
        "event  note #1 in user:",
        "Done: 6 events arrived",
    ] {
        assert!(text.contains(expected), "{expected} is missing in:\n{text}");
    }
}

#[test]
fn a_configuration_error_names_its_source() {
    let output = switchboard(&["serve"], &[("SWITCHBOARD_DATABASE__URI", "sqlite:x.db")]);
    assert!(!output.status.success());
    let text = err(&output);
    assert!(text.starts_with("error: SWITCHBOARD_DATABASE__URI: ") && text.contains("unknown field `uri`"), "{text}");
    let output = switchboard(&["serve", "--replicas", "multi"], &[]);
    assert!(err(&output).contains("needs PostgreSQL"), "{}", err(&output));
}

#[test]
fn the_first_key_is_made_against_the_file_itself() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("s.db").display());
    let env = [("SWITCHBOARD_DATABASE__URL", url.as_str())];
    let made = switchboard(&["api-key", "create", "--name", "first", "--scope", "admin"], &env);
    assert!(out(&made).starts_with("sbk_"), "{}", err(&made));
    let listed = switchboard(&["api-key", "list"], &env);
    assert!(out(&listed).contains("first"), "{}", err(&listed));
    assert!(!out(&listed).contains(out(&made).trim()), "the key is shown once");
    let free = switchboard(&["check"], &env);
    assert!(free.status.success(), "{}", out(&free));
}

#[tokio::test(flavor = "multi_thread")]
async fn migrating_and_checking_a_server_say_what_they_found() {
    let database = TestDatabase::empty().await;
    let env = [("SWITCHBOARD_DATABASE__URL", database.url()), ("SWITCHBOARD_REPLICAS", "multi")];
    let before = switchboard(&["check"], &env);
    assert_eq!(before.status.code(), Some(16), "replicas without keys: {}", err(&before));
    for finding in ["auth.signing_keys", "the schema has version 0"] {
        assert!(out(&before).contains(finding), "all is told at once: {}{}", out(&before), err(&before));
    }
    let new_key = |kind| out(&switchboard(&["token", "new-key", "--id", "1", "--kind", kind], &[])).trim().to_owned();
    let (signing, sealing) = (new_key("hs256"), new_key("secrets"));
    let env = [
        env[0],
        env[1],
        ("SWITCHBOARD_AUTH__SIGNING_KEYS", signing.as_str()),
        ("SWITCHBOARD_SECRETS__KEYS", sealing.as_str()),
    ];
    let migrated = switchboard(&["migrate"], &env);
    assert!(out(&migrated).starts_with("Migrated the schema from version 0 to "), "{}", err(&migrated));
    let again = switchboard(&["migrate"], &env);
    assert!(out(&again).starts_with("The schema is up to date at version "), "{}", out(&again));
    let after = switchboard(&["check", "--json"], &env);
    assert!(after.status.success(), "{}", out(&after));
    assert!(out(&after).contains("LISTEN and NOTIFY work"), "{}", out(&after));
    let large: Vec<_> = env.into_iter().chain([("SWITCHBOARD_DATABASE__POOL_SIZE", "1000")]).collect();
    let refused = switchboard(&["check"], &large);
    assert_eq!(refused.status.code(), Some(13), "{}", out(&refused));
    let strict: Vec<_> = large.into_iter().chain([("SWITCHBOARD_STRICT", "true")]).collect();
    let refused = switchboard(&["serve"], &strict);
    assert_eq!(refused.status.code(), Some(13), "{}", err(&refused));
}

#[test]
fn an_unreachable_server_is_an_error_with_advice_and_no_password() {
    let url = "postgres://someone:hunter2@127.0.0.1:1/none";
    let output = switchboard(&["check"], &[("SWITCHBOARD_DATABASE__URL", url)]);
    assert_eq!(output.status.code(), Some(10), "{}{}", out(&output), err(&output));
    let text = format!("{}{}", out(&output), err(&output));
    assert!(text.contains("check database.url") && !text.contains("hunter2"), "{text}");
}

#[test]
fn the_reference_in_the_documentation_is_that_of_the_program() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference");
    for page in ["configuration", "cli"] {
        let printed = out(&switchboard(&["reference", page], &[]));
        let written = std::fs::read_to_string(format!("{folder}/{page}.md")).unwrap_or_default();
        assert!(printed == written, "write it anew: cargo run -- reference {page} > docs/reference/{page}.md");
    }
}

#[test]
fn completions_are_made_for_shells() {
    for (shell, expected) in
        [("bash", "complete -F"), ("zsh", "#compdef switchboard"), ("fish", "complete -c switchboard")]
    {
        let output = switchboard(&["completions", shell], &[]);
        assert!(output.status.success() && out(&output).contains(expected), "{shell}: {}", err(&output));
    }
}

#[test]
fn a_key_is_never_shown() {
    let env = [("SWITCHBOARD_API_KEY", "sbk_hunter2"), ("SWITCHBOARD_URL", "http://127.0.0.1:1")];
    for arguments in [&["task", "list", "--help"][..], &["task", "list"], &["task", "nonsense"], &["tail", "--json"]] {
        let output = switchboard(arguments, &env);
        let text = format!("{}{}", out(&output), err(&output));
        assert!(!text.is_empty() && !text.contains("hunter2"), "{text}");
    }
}
