//! The one integration binary.

mod forward;
mod identity;
mod schedule;
mod smollm;
mod schedule;
mod serve;
mod tick;
mod tidy;
