//! The one integration binary.

mod serve;
mod tidy;
