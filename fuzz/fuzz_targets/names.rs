//! Names: each parser accepts exactly what the grammar says that the documents show, and keeps the text as it is.

#![no_main]

use std::fmt::Display;
use std::str::FromStr;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use regex_lite::Regex;
use switchboard_model::identity::{
    ClientKey, ConcurrencyKey, EventName, PoolName, RoomName, TaskName, UserId, UserName, WorkerName,
};
use switchboard_model::room::RoomClass;
use switchboard_model::scope::Scope;

fn check<T: FromStr + Display>(grammar: &Regex, text: &str) {
    let parsed = text.parse::<T>();
    // In a regular expression `$` also matches before a line feed at the end, which no grammar means.
    assert_eq!(parsed.is_ok(), grammar.is_match(text) && !text.ends_with('\n'), "{grammar} {text:?}");
    if let Ok(name) = parsed {
        assert_eq!(name.to_string(), text);
    }
}

fuzz_target!(|text: &str| {
    macro_rules! each {
        ($($name:ident),+) => {$({
            static GRAMMAR: LazyLock<Regex> = LazyLock::new(|| Regex::new($name::PATTERN).expect("a grammar"));
            check::<$name>(&GRAMMAR, text);
        })+};
    }
    each!(ClientKey, ConcurrencyKey, EventName, PoolName, RoomName, TaskName, UserId, UserName, WorkerName);
    if let Ok(room) = text.parse::<RoomName>()
        && let RoomClass::User(user) = room.class()
    {
        assert_eq!(user.room(), room);
    }
    if let Ok(scope) = text.parse::<Scope>() {
        assert_eq!(scope.to_string().parse(), Ok(scope));
    }
});
