//! Tables: columns sized from [`crate::limits::Limits`] at start, one table per file. Rows are slots unless said.

pub mod constraints;
pub mod counters;
pub mod outbox;
pub mod output;
pub mod pages;
pub mod plans;
pub mod prefix;
pub mod requests;
pub mod suffix;
pub mod survival;
pub mod tokens;
pub mod totals;
pub mod waiting;
pub mod windows;
