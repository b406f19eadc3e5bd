//! Verbs of `engine-pack`: what a model file is, and what it needs.

pub mod inspect;
