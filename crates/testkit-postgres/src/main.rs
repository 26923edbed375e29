//! Holds one PostgreSQL server for people: prints its URL and keeps it until standard input closes.
//!
//! It must do nothing that the library does not do.

use std::io::Read;

use switchboard_testkit_postgres::{Durability, PostgresError, PostgresServer};

fn main() -> Result<(), PostgresError> {
    let server = PostgresServer::find_or_start(Durability::Fast)?;
    println!("{}", server.url());
    // A fault of the input ends the server as its end does.
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
    Ok(())
}
