//! The test bed itself, on a real PostgreSQL server. Clusters are proved by the tests of the server, which know its binary.

#[cfg(test)]
mod database;
#[cfg(test)]
mod proxy;
