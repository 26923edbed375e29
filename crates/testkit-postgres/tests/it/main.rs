//! A real server is started, steered and left behind by a killed process.
//!
//! Everything here needs server binaries on the machine and nothing of Switchboard.

#[cfg(test)]
mod lifetime;
