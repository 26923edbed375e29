//! The commands about people: users, their sign-in, and the keys behind it.

use std::io::{BufRead as _, BufReader};

use serde_json::{Value, json};

use crate::cli::Cli;
use crate::fixtures::{cluster, err, out, switchboard};

const PASSWORD: &str = "correct horse battery";

/// Signs somebody in.
fn login(cli: &Cli, name: &str, password: &str) -> Value {
    let text = cli.says_to(&["token", "login", name, "--password-stdin", "--json"], &format!("{password}\n"));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn users_are_looked_after_in_the_file_itself() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("s.db").display());
    let file = Cli { env: vec![("SWITCHBOARD_DATABASE__URL", url)] };
    let create = ["user", "create", "root", "--role", "admin", "--password-stdin"];
    let made = file.says_to(&create, PASSWORD);
    assert!(made.starts_with("Created user root ("), "{made}");
    assert!(err(&file.reads(&create, PASSWORD)).contains("has this name, or this id, already"));
    assert!(err(&file.reads(&["user", "create", "ann", "--password-stdin"], "short")).contains("8 to 128 characters"));
    assert!(file.fails(&["user", "create", "ann"]).contains("pipe it in and give --password-stdin"));

    let root = file.gives(&["user", "get", "root"]);
    assert_eq!(
        (&root["role"], &root["has_password"], &root["is_disabled"]),
        (&json!("admin"), &json!(true), &json!(false))
    );
    let id = root["id"].as_str().unwrap();
    assert_eq!(file.gives(&["user", "get", id]), root);
    assert!(file.says(&["user", "list"]).contains("active"));
    assert_eq!(file.gives(&["user", "disable", "root"])["is_disabled"], true);
    assert!(file.says(&["user", "list"]).contains("disabled"));
    assert_eq!(file.says(&["user", "enable", id]), "Enabled user root.\n");
    assert_eq!(file.says(&["user", "set-role", "root", "operator"]), "User root is operator now.\n");
    file.says_to(&["user", "set-password", "root", "--password-stdin"], "another password");
    assert_eq!(file.gives(&["user", "sessions", "root"]), json!([]));
    assert!(file.says(&["user", "end-sessions", "root"]).starts_with("Signed user root out"));
    assert_eq!(file.says(&["user", "delete", "root"]), "Deleted user root.\n");
    assert!(file.fails(&["user", "get", "root"]).contains("there is no user root; see `switchboard user list`"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_administrator_signs_in_and_does_the_rest() {
    let cluster = cluster(2).await;
    let url = cluster.base_urls().remove(0);
    let database = Cli { env: vec![("SWITCHBOARD_DATABASE__URL", cluster.database().url().to_owned())] };
    database.says_to(&["user", "create", "root", "--role", "admin", "--password-stdin"], PASSWORD);
    let anonymous = Cli { env: vec![("SWITCHBOARD_URL", url)] };
    let token = anonymous.says_to(&["token", "login", "root", "--password-stdin"], PASSWORD);
    let root = anonymous.with_credential(token.trim());
    assert!(root.says(&["token", "me"]).contains("admin"));
    root.says_to(&["user", "create", "auth0|ann", "--password-stdin"], PASSWORD);
    assert_eq!(root.gives(&["user", "create", "bob", "--id", "Sub|4711", "--no-password"])["has_password"], false);
    assert_eq!(root.gives(&["user", "get", "Sub|4711"])["name"], "bob");
    assert!(root.says(&["user", "list"]).contains("another issuer"));
    let actions: Vec<Value> = root.gives(&["audit", "list", "--action", "user.create"]).as_array().unwrap().clone();
    let actors: Vec<&str> = actions.iter().map(|entry| entry["actor"].as_str().unwrap()).collect();
    assert_eq!((actors.len(), actors[2]), (3, "system:cli"));
    assert!(actors[0].starts_with("user:"), "{actors:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_signs_in_works_and_is_signed_out() {
    let cluster = cluster(1).sqlite().await;
    let admin = Cli::of(&cluster);
    admin.says_to(&["user", "create", "ann", "--password-stdin"], PASSWORD);
    let wrong = admin.reads(&["token", "login", "ann", "--password-stdin"], "something else");
    assert!(err(&wrong).contains("the name or the password is wrong") && !err(&wrong).contains("API key"), "{wrong:?}");

    let tokens = login(&admin, "ann", PASSWORD);
    let ann = admin.with_credential(tokens["access_token"].as_str().unwrap());
    let me = ann.gives(&["token", "me"]);
    assert_eq!((&me["user_id"], &me["scopes"]), (&tokens["user"]["id"], &json!([])));
    let denied = ann.fails(&["task", "list"]);
    assert!(denied.contains("sign in as somebody whose role allows it"), "{denied}");
    let sessions = admin.says(&["user", "sessions", "ann"]);
    assert!(sessions.contains("switchboard-client/"), "{sessions}");

    let refresh = tokens["refresh_token"].as_str().unwrap();
    let next = admin.says_to(&["token", "refresh", "--token-stdin"], refresh);
    assert!(ann.with_credential(next.trim()).says(&["token", "me"]).contains("session_id"));
    let odd = admin.reads(&["token", "refresh", "--token-stdin"], "sbr_odd");
    assert!(err(&odd).contains("sign in again"), "{}", err(&odd));

    assert_eq!(ann.says(&["token", "logout", "--everywhere"]), "Signed out.\n");
    let ended = ann.fails(&["token", "logout"]);
    assert!(ended.contains("get another one with: switchboard token login NAME"), "{ended}");
    login(&admin, "ann", PASSWORD);
    admin.says(&["user", "end-sessions", "ann"]);
    assert_eq!(admin.gives(&["user", "sessions", "ann"]), json!([]));
    admin.says_to(&["user", "set-password", "ann", "--password-stdin"], "another password");
    login(&admin, "ann", "another password");
    assert_eq!(admin.says(&["user", "set-role", "ann", "operator"]), "User ann is operator now.\n");
    admin.says(&["user", "disable", "ann"]);
    let disabled = admin.reads(&["token", "login", "ann", "--password-stdin"], "another password");
    assert!(err(&disabled).contains("the name or the password is wrong"), "{}", err(&disabled));
    assert_eq!(admin.says(&["user", "enable", "ann"]), "Enabled user ann.\n");
    assert_eq!(admin.says(&["user", "delete", "ann"]), "Deleted user ann.\n");
    assert!(admin.fails(&["user", "delete", "ann"]).contains("there is no user ann"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_follows_public_rooms_with_a_socket_of_their_own() {
    let cluster = cluster(1).sqlite().await;
    let admin = Cli::of(&cluster);
    admin.says(&["room", "create", "lobby", "--kind", "public"]);
    admin.says(&["publish", "lobby", "first"]);
    admin.says_to(&["user", "create", "ann", "--password-stdin"], PASSWORD);
    let ann = admin.with_credential(login(&admin, "ann", PASSWORD)["access_token"].as_str().unwrap());
    let mut tail = ann.piped(&["tail", "lobby", "--since", "earliest", "--json"]);
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let event: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(event["event"], "first");
    admin.says(&["user", "disable", "ann"]);
    let ended = tail.wait_with_output().unwrap();
    assert!(!ended.status.success() && err(&ended).contains("session revoked"), "{}", err(&ended));
}

#[test]
fn new_keys_are_what_the_configuration_takes() {
    let key = |kind: &str| out(&switchboard(&["token", "new-key", "--kind", kind, "--id", "2027-01"], &[]));
    let (signing, other, sealing) = (key("hs256"), key("ed25519"), key("secrets"));
    assert!(signing.starts_with("2027-01:hs256:") && other.starts_with("2027-01:ed25519:"), "{signing}{other}");
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("s.db").display());
    let check = |signing: &str, sealing: &str| {
        let env = [
            ("SWITCHBOARD_DATABASE__URL", url.as_str()),
            ("SWITCHBOARD_AUTH__SIGNING_KEYS", signing.trim()),
            ("SWITCHBOARD_SECRETS__KEYS", sealing.trim()),
        ];
        switchboard(&["check"], &env)
    };
    for signing in [&signing, &other] {
        let checked = check(signing, &sealing);
        assert!(checked.status.success(), "{}", err(&checked));
    }
    assert!(!check(&sealing, &signing).status.success());
    let odd = switchboard(&["token", "new-key", "--id", "a:b"], &[]);
    assert_eq!(odd.status.code(), Some(1));
}
