//! Mixture of experts: a router chooses a few experts for every row, each runs a small FFN on it, and the row gets
//! their weighted sum.
//!
//! ```text
//! logits [rows][experts] ─► route ─► routes [rows][used]          which experts, in order of score, and their weights
//! x [rows][k], routes    ─► experts ─► dst [rows][n]              dst = sum_j weight_j * down_j(act(gate_j x, up_j x))
//! ```
//!
//! Source: ggml-based `build_moe_ffn` of llama.cpp (`src/llama-graph.cpp`), for scores, bias, groups, normalisation,
//! scale, and the order of the sum.

mod experts;
mod route;

pub use experts::{ExpertScratch, Experts, experts};
pub use route::{GROUPS_MAX, Gating, Groups, Route, Router, route};

#[cfg(test)]
mod tests;
