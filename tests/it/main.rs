//! The one integration binary.

mod forward;
mod smollm;
mod tidy;
mod tick;
