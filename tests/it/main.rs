//! The one integration binary.

mod forward;
mod schedule;
mod serve;
mod tick;
mod tidy;
