//! Model files made from others.

mod checkpoints;
mod convert;
mod quantize;
