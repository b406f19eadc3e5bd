//! HTTP/1.1 without sockets: request heads, body framing, response heads. Pure functions over byte slices.

pub(crate) mod body;
pub(crate) mod head;
pub(crate) mod response;

pub(crate) use body::Decoder;
pub(crate) use head::{Head, HeadError, Method};
pub(crate) use response::Reply;
