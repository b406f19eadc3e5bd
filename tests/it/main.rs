//! The one integration binary.

mod tick;
