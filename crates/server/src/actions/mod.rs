//! Actions that reach beyond the scheduler: events, requests, the functions of `system` tasks, and what runs write.

mod event;
mod http;
mod output;
mod system;

pub(crate) use self::event::EventRunner;
pub(crate) use self::http::HttpRunner;
pub(crate) use self::output::StreamedOutput;
pub(crate) use self::system::system_functions;
