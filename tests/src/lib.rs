//! Fixtures, the toy model, and a driver that runs prompts through whole engines.

pub mod drive;
pub mod fixtures;
pub mod toy;
