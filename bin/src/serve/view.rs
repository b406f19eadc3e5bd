//! What an engine that runs shows of itself: `/slots`, and what `/metrics` takes from its gauges.

use std::sync::Arc;

use engine::clock::{Clock as _, Monotonic};
use engine::gauges::{Gauges, Row, Snapshot, State};
use serde_json::{Value, json};

use crate::serve::Parts;

/// A loaded model and the gauges of its engine.
pub(crate) struct View {
    gauges: Arc<Gauges>,
    clock: Monotonic,
    n_ctx: usize,
    /// The answer of `/props`.
    pub props: Value,
    /// Facts that `/metrics` repeats as labels.
    pub labels: Labels,
}

/// The model in words.
#[derive(Clone, Debug)]
pub(crate) struct Labels {
    pub model: String,
    pub arch: String,
    pub ftype: String,
    pub trunk_layers: usize,
    pub nextn: usize,
    pub strategy: &'static str,
    pub n_ctx: usize,
}

impl View {
    /// Of what is about to be served.
    pub(crate) fn new(parts: &Parts, props: Value) -> Self {
        let labels = Labels {
            model: parts.info.id.clone(),
            arch: parts.info.arch.clone(),
            ftype: parts.info.ftype.clone(),
            trunk_layers: parts.info.trunk_layers,
            nextn: parts.info.nextn,
            strategy: parts.spec.default.strategy.name(),
            n_ctx: parts.info.n_ctx,
        };
        Self { gauges: Arc::clone(&parts.gauges), clock: parts.clock, n_ctx: parts.info.n_ctx, props, labels }
    }

    /// The engine's last snapshot.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.gauges.read()
    }

    /// Positions of a page.
    pub(crate) fn page_tokens(&self) -> usize {
        self.gauges.page_tokens()
    }

    /// Pages of the pool.
    pub(crate) fn pages(&self) -> usize {
        self.gauges.pages()
    }

    /// The answer of `/slots`, and whether a slot is free.
    pub(crate) fn slots(&self) -> (Value, bool) {
        // The snapshot first: a request that came after it is in none of its rows.
        let snapshot = self.snapshot();
        let now_ns = self.clock.now_ns();
        let rows = snapshot.rows.iter().enumerate().map(|(slot, row)| one(slot, row, self.n_ctx, now_ns)).collect();
        (rows, snapshot.rows.iter().any(|row| row.state() == State::Free))
    }
}

fn one(slot: usize, row: &Row, n_ctx: usize, now_ns: u64) -> Value {
    let state = row.state();
    let taken = state != State::Free;
    // A limit past the context is none.
    let room = (n_ctx as u64).saturating_sub(row.prompt);
    let left = if row.limit < room { json!(row.limit - row.decoded.min(row.limit)) } else { json!(-1) };
    let left = if taken { left } else { json!(0) };
    let accept_len = (row.windows > 0).then(|| (row.window_tokens as f64 / row.windows as f64 * 1e3).round() / 1e3);
    let strategy = row.strategy();
    json!({
        "id": slot,
        "request": row.request(slot).map(|request| request.to_string()),
        "is_processing": taken,
        "state": state.name(),
        "n_ctx": n_ctx,
        "n_prompt": row.prompt,
        "n_prompt_done": row.prompt_done,
        "n_cached": row.cached,
        "n_decoded": row.decoded,
        "n_remain": left,
        "speculative": taken && (strategy.uses_mtp() || strategy.uses_suffix()),
        "strategy": taken.then(|| strategy.name()),
        "window": row.window,
        "accept_len": accept_len,
        "age_ms": if taken { now_ns.saturating_sub(row.arrived_ns) / 1_000_000 } else { 0 },
        "next_token": {"has_next_token": taken, "n_remain": left, "n_decoded": row.decoded},
    })
}

#[cfg(test)]
mod tests {
    use engine::api::Strategy;

    use super::*;

    #[test]
    fn a_row_in_words() {
        let row = Row {
            state: State::Decode as u64,
            generation: 7,
            prompt: 10,
            prompt_done: 10,
            cached: 8,
            decoded: 5,
            limit: 20,
            strategy: Strategy::Mtp as u64,
            window: 3,
            windows: 3,
            window_tokens: 5,
            arrived_ns: 1_000_000,
        };
        let slot = one(2, &row, 100, 9_500_000);
        assert_eq!(
            (&slot["request"], &slot["state"], &slot["n_remain"]),
            (&json!("r2v7"), &json!("decode"), &json!(15))
        );
        assert_eq!((&slot["accept_len"], &slot["age_ms"]), (&json!(1.667), &json!(8)));
        assert_eq!((&slot["strategy"], &slot["speculative"]), (&json!("mtp"), &json!(true)));
        let slot = one(2, &Row { limit: u32::MAX.into(), ..row }, 100, 0);
        assert_eq!((&slot["n_remain"], &slot["age_ms"]), (&json!(-1), &json!(0)));
        let free = one(0, &Row::default(), 100, 9_500_000);
        assert_eq!(
            (&free["request"], &free["strategy"], &free["is_processing"]),
            (&Value::Null, &Value::Null, &json!(false))
        );
        assert_eq!((&free["age_ms"], &free["next_token"]["has_next_token"]), (&json!(0), &json!(false)));
    }
}
