//! The one integration binary.

mod built_in;
mod capi;
mod cases;
mod compare;
mod composite;
mod forward;
mod fuzz;
mod identity;
mod memory;
mod pack;
mod prefix;
mod refusals;
mod replay;
mod report;
mod schedule;
mod scores;
mod serve;
mod sidecars;
mod smollm;
mod stages;
mod suffix;
mod sweep;
mod terminal;
mod tick;
mod tidy;
mod tokenizers;
