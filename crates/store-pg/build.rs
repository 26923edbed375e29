//! Rebuilds this crate when a migration is added, which the compiler alone would not see.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations/postgres");
}
