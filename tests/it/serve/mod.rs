//! The server through its sockets: a scripted engine for what is about HTTP, the built-in model for the rest.

mod api_flags;
mod canary;
mod channels;
pub mod client;
mod constrained;
mod described;
mod doors;
mod errors;
mod fake;
mod families;
mod fields;
mod framing;
mod messages;
mod model_files;
pub mod process;
mod real;
mod record;
mod replay;
mod responses;
mod rules;
mod shapes;
mod shown;
mod slow;
mod streaming;
mod told;
