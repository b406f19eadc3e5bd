//! Fixtures, the toy model, and a driver that runs prompts through whole engines.

pub mod drive;
pub mod edits;
pub mod fixtures;
pub mod fuzz;
pub mod memory;
pub mod narrow;
pub mod scripted;
pub mod styles;
pub mod toy;
