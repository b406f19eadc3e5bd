//! The one integration binary.

mod serve;
mod forward;
mod tidy;
mod tick;
