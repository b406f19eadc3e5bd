//! The one integration binary.

mod schedule;
mod tick;
