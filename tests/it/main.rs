//! The one integration binary.

mod tidy;
mod tick;
