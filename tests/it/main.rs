//! The one integration binary.

mod forward;
mod identity;
mod schedule;
mod smollm;
mod tick;
mod tidy;
