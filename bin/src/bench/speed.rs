//! How fast passes are: prefill, plain decoding, and windows of given widths.

use std::collections::BTreeMap;
use std::time::Instant;

use clap::Args;
use engine::limits::{Limits, STEP_ROWS_MAX, WINDOW_MAX};
use engine::step::Executor;
use serde::Serialize;

use super::finite::{self, NonFinite};
use super::options::RunFlags;
use super::single::{Single, Want};

/// Windows timed of each width; the median is reported.
const REPEATS: usize = 9;

/// `engine-bench speed`.
#[derive(Clone, Debug, Args)]
pub struct SpeedFlags {
    /// How the model is run.
    #[command(flatten)]
    pub run: RunFlags,
    /// Tokens of the timed prompt.
    #[arg(long, default_value_t = 256)]
    pub prefill: usize,
    /// Tokens of the timed decoding.
    #[arg(long, default_value_t = 64)]
    pub decode: usize,
    /// Widths of timed windows, in rows.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32", value_parser = window_rows)]
    pub rows: Vec<usize>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

fn window_rows(text: &str) -> Result<usize, String> {
    let rows: usize = text.parse().map_err(|error| format!("{error}"))?;
    if (1..=WINDOW_MAX + 1).contains(&rows) {
        Ok(rows)
    } else {
        Err(format!("a window has 1 to {} rows", WINDOW_MAX + 1))
    }
}

/// Times of one model on one machine.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Speed {
    /// Tokens of plain decoding a second.
    pub decode_tok_s: f64,
    /// Prompt tokens a second.
    pub prefill_tok_s: f64,
    /// Rows of a window -> milliseconds of its pass, choice included.
    pub rows_ms: BTreeMap<usize, f64>,
    /// Workers.
    pub threads: usize,
}

/// Limits of an executor that can run these measurements.
pub fn limits(flags: &SpeedFlags) -> Limits {
    let windows = REPEATS * flags.rows.len() + flags.rows.iter().copied().max().unwrap_or(0);
    let context = flags.prefill.max(1).saturating_add(flags.decode).saturating_add(windows);
    Limits { window_max: WINDOW_MAX, ..Limits::new(1, context) }
}

/// Runs the measurements.
///
/// # Errors
/// At the first pass without a finite logit: what such a model takes is not what a model takes.
pub fn measure<E: Executor>(single: &mut Single<E>, flags: &SpeedFlags) -> Result<Speed, NonFinite> {
    let vocab = single.executor().shape().vocab as u32;
    // Any ids do: only their number matters. The multiplier spreads them over the table.
    let token = |i: usize| (i as u32).wrapping_mul(2_654_435_761) % vocab;
    let prompt: Vec<u32> = (0..flags.prefill.max(1)).map(token).collect();

    single.reset();
    commit(single, &prompt[..1])?; // pages in what a first pass touches
    single.reset();
    let mut next = 0;
    let started = Instant::now();
    for chunk in prompt.chunks(STEP_ROWS_MAX) {
        next = commit(single, chunk)?;
    }
    let prefill = started.elapsed().as_secs_f64();

    let started = Instant::now();
    for _ in 0..flags.decode {
        next = commit(single, &[next])?;
    }
    let decode = started.elapsed().as_secs_f64();

    let mut rows_ms = BTreeMap::new();
    for &rows in &flags.rows {
        let window: Vec<u32> = (0..rows).map(token).collect();
        let times: Result<Vec<f64>, NonFinite> = (0..REPEATS).map(|_| timed_window(single, &window)).collect();
        let mut times = times?;
        times.sort_by(f64::total_cmp);
        rows_ms.insert(rows, times[REPEATS / 2]);
    }
    Ok(Speed {
        decode_tok_s: rate(flags.decode, decode),
        prefill_tok_s: rate(prompt.len(), prefill),
        rows_ms,
        threads: flags.run.threads,
    })
}

/// A window of which only the anchor stays.
fn timed_window<E: Executor>(single: &mut Single<E>, window: &[u32]) -> Result<f64, NonFinite> {
    let kept = single.kv_len() + 1;
    let started = Instant::now();
    single.trunk(window, 1, Want::Choice);
    let time = started.elapsed().as_secs_f64() * 1e3;
    finite::check_choice(single.result(), kept as usize - 1)?;
    single.truncate(kept);
    if single.executor().shape().mtp {
        single.mtp(&window[..1], 0, false);
    }
    Ok(time)
}

/// A pass over committed tokens, and the MTP cache filled after it, as any strategy does while a block is loaded.
/// Returns the greedy next token.
fn commit<E: Executor>(single: &mut Single<E>, tokens: &[u32]) -> Result<u32, NonFinite> {
    single.trunk(tokens, tokens.len(), Want::Choice);
    finite::check_choice(single.result(), single.kv_len() as usize - 1)?;
    let next = single.result().next[0];
    if single.executor().shape().mtp {
        single.mtp(tokens, 0, false);
    }
    Ok(next.0)
}

fn rate(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}
