//! The same under the names of llama-server.

use std::time::Instant;

use engine::gauges::Snapshot;

use crate::serve::metrics::Metrics;
use crate::serve::metrics::exposition::Exposition;

pub(super) fn write(page: &mut Exposition, m: &Metrics, snapshot: &Snapshot, now: Instant) {
    let e = &snapshot.engine;
    let passes: u64 = e.ticks[1..].iter().sum();
    page.counter("llamacpp:prompt_tokens_total", "Prompt tokens computed", m.prompt_computed);
    page.counter("llamacpp:prompt_tokens_cached_total", "Prompt tokens of the prefix cache", m.prompt_cached);
    page.seconds("llamacpp:prompt_seconds_total", "Time of prompts", m.times.prefill.sum());
    page.counter("llamacpp:tokens_predicted_total", "Completion tokens", m.generated());
    page.seconds("llamacpp:tokens_predicted_seconds_total", "Time of completions", m.times.decode.sum());
    page.counter("llamacpp:n_decode_total", "Ticks with a pass", passes);
    page.counter("llamacpp:n_tokens_max", "Longest prompt and answer", m.tokens_most);
    let (drafted, accepted) = (m.mtp.drafted + m.suffix.drafted, m.mtp.accepted + m.suffix.accepted);
    page.counter("llamacpp:spec_decode_num_draft_tokens_total", "Drafts verified", drafted);
    page.counter("llamacpp:spec_decode_num_accepted_tokens_total", "Drafts committed", accepted);
    page.counter("llamacpp:spec_decode_num_drafts_total", "Windows with drafts", m.windows);
    let names: Vec<String> = (0..m.positions.len()).map(|p| p.to_string()).collect();
    let seen = names.iter().zip(&m.positions).filter(|(_, (drafted, _))| *drafted > 0);
    let rows: Vec<(&str, u64)> = seen.map(|(name, (_, accepted))| (name.as_str(), *accepted)).collect();
    let name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total";
    page.by(name, "counter", "Drafts committed, by place in the window", "position", &rows);
    let (prompt, generated) = m.recent.rates(now);
    let help = "Prompt tokens a second, of choices that ended in the last 10 s";
    page.gauge("llamacpp:prompt_tokens_seconds", help, prompt);
    let help = "Completion tokens a second, of choices that ended in the last 10 s";
    page.gauge("llamacpp:predicted_tokens_seconds", help, generated);
    page.gauge("llamacpp:requests_processing", "Admitted choices", m.running);
    page.gauge("llamacpp:requests_deferred", "Queued choices", m.waiting());
    let busy = if passes == 0 { 0.0 } else { e.segments as f64 / passes as f64 };
    page.gauge("llamacpp:n_busy_slots_per_decode", "Sequences of a pass, on average", busy);
}
