//! Actions that reach beyond the scheduler: events, requests, and the functions of `system` tasks.

mod event;
mod http;
mod system;

pub(crate) use self::event::EventRunner;
pub(crate) use self::http::HttpRunner;
pub(crate) use self::system::system_functions;
