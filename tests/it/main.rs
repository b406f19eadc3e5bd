//! The one integration binary.

mod forward;
mod schedule;
mod tick;
mod tidy;
