//! What the reference calls the kinds of settings whose types say less than a reader wants to know.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

macro_rules! kinds {
    ($($name:ident = $format:literal;)+) => {$(
        pub(super) enum $name {}

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "format": $format })
            }
        }
    )+};
}

kinds! {
    Address = "address and port";
    Destination = "host, host:port or network";
    Duration = "duration";
    Instant = "instant or now";
    Network = "network";
    Origin = "origin";
    Path = "path";
    Pool = "pool name";
    Rate = "rate";
    Role = "role";
    Secret = "secret";
    Url = "URL";
}
