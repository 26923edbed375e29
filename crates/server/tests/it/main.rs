//! End-to-end tests: real server processes, real databases, real sockets.

mod fixtures;

mod command_line;
mod faults;
mod replicas;
mod surface;
