//! The one integration binary.

mod forward;
mod identity;
mod schedule;
mod suffix;
mod tick;
mod tidy;
