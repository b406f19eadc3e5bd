//! The one integration binary.

mod forward;
mod smollm;
mod tick;
mod tidy;
