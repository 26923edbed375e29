//! The sockets of the client against a scripted replica: what is sent, sorted, resumed and said.

#[cfg(test)]
mod replica;
#[cfg(test)]
mod resume;
#[cfg(test)]
mod socket;
