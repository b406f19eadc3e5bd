//! The tables and the tick. Opens no socket, sees time only as an argument, holds no unsafe code.
#![forbid(unsafe_code)]

pub mod accept;
pub mod api;
pub mod channels;
pub mod clock;
pub mod constraint;
pub mod cost;
pub mod delta;
pub mod engine;
pub mod exec;
pub mod gauges;
pub mod ids;
pub mod limits;
pub mod memory;
pub mod model;
pub mod pieces;
pub mod policy;
pub mod probe;
pub mod rules;
pub mod sample;
pub mod schedule;
pub mod stage;
pub mod step;
pub mod systems;
pub mod tables;
pub mod tick;
pub mod world;
