//! `engine-pack`, through its library and as a program: heads converted, quantised and put behind models, and what tells
//! whether they fit.

mod checkpoints;
mod convert;
mod doctor;
mod files;
mod graft;
mod kill;
mod large;
mod quantize;
mod refused;
