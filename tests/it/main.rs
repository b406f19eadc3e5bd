//! The one integration binary.

mod forward;
mod tidy;
mod tick;
