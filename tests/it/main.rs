//! The one integration binary.

mod forward;
mod identity;
mod schedule;
mod tick;
mod tidy;
