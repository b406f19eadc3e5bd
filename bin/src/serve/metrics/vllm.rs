//! The same under the names of vLLM, for dashboards and routers made for it.

use engine::gauges::Snapshot;
use engine::tables::totals::TICK_TOKEN_BOUNDS;

use crate::serve::metrics::bounds::INTER_TOKEN_LEAST_NS;
use crate::serve::metrics::engine_side::{inter_token, usage};
use crate::serve::metrics::exposition::{Exposition, Histogram, Unit};
use crate::serve::metrics::{End, Metrics};
use crate::serve::view::View;

pub(super) fn write(page: &mut Exposition, m: &Metrics, view: &View, snapshot: &Snapshot) {
    let base = [("model_name", view.labels.model.as_str()), ("engine", "0")];
    let e = &snapshot.engine;
    let mut one = |name: &str, kind: &str, help: &str, value: String| {
        page.table(name, kind, help, &[(base.to_vec(), value)]);
    };
    one("vllm:num_requests_running", "gauge", "Admitted choices", m.running.to_string());
    one("vllm:num_requests_waiting", "gauge", "Queued choices", m.waiting().to_string());
    one("vllm:num_requests_swapped", "gauge", "Always 0: nothing is swapped", "0".to_owned());
    for name in ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"] {
        one(name, "gauge", "Pages that choices have, of all", usage(view, snapshot).to_string());
    }
    let asked = m.prompt_computed + m.prompt_cached;
    for (name, help, value) in [
        ("vllm:prefix_cache_queries_total", "Prompt tokens looked up", asked),
        ("vllm:prefix_cache_hits_total", "Prompt tokens found", m.prompt_cached),
        ("vllm:gpu_prefix_cache_queries_total", "Prompt tokens looked up", asked),
        ("vllm:gpu_prefix_cache_hits_total", "Prompt tokens found", m.prompt_cached),
        ("vllm:num_preemptions_total", "Times a row was preempted", e.preempted),
        ("vllm:prompt_tokens_total", "Prompt tokens, cached ones included", asked),
        ("vllm:generation_tokens_total", "Completion tokens", m.generated()),
        ("vllm:spec_decode_num_drafts_total", "Windows with drafts", m.windows),
        ("vllm:spec_decode_num_draft_tokens_total", "Drafts verified", m.mtp.drafted + m.suffix.drafted),
        ("vllm:spec_decode_num_accepted_tokens_total", "Drafts committed", m.mtp.accepted + m.suffix.accepted),
    ] {
        one(name, "counter", help, value.to_string());
    }
    let with = |name: &'static str, value: String| {
        let mut labels: Vec<(&str, String)> = base.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
        labels.push((name, value));
        labels
    };
    let of = |end: End| m.ends.get(&end).copied().unwrap_or(0);
    let reasons = [
        ("stop", of(End::Stop) + of(End::StopString) + of(End::ToolCalls)),
        ("length", of(End::Length) + of(End::ContextFull)),
        ("abort", of(End::Cancelled)),
    ];
    let rows: Vec<_> =
        reasons.iter().map(|(name, n)| (with("finished_reason", (*name).to_owned()), n.to_string())).collect();
    table(page, "vllm:request_success_total", "Choices by the reason of their end", &rows);
    let rows: Vec<_> = (0..m.positions.len())
        .filter(|p| m.positions[*p].0 > 0)
        .map(|p| (with("position", p.to_string()), m.positions[p].1.to_string()))
        .collect();
    table(
        page,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "Drafts committed, by place in the window",
        &rows,
    );
    let cache = [
        ("block_size", view.page_tokens().to_string()),
        ("num_gpu_blocks", view.pages().to_string()),
        ("cache_dtype", "auto".to_owned()),
        ("enable_prefix_caching", "True".to_owned()),
    ];
    let cache: Vec<(&str, &str)> = base.iter().copied().chain(cache.iter().map(|(k, v)| (*k, v.as_str()))).collect();
    page.info("vllm:cache_config_info", "The KV pool", &cache);
    let lora = [("max_lora", "0"), ("running_lora_adapters", ""), ("waiting_lora_adapters", "")];
    page.info("vllm:lora_requests_info", "Always the same: there are no adapters", &lora);
    histograms(page, m, view, snapshot, &base);
}

fn table(page: &mut Exposition, name: &str, help: &str, rows: &[(Vec<(&str, String)>, String)]) {
    let rows: Vec<(Vec<(&str, &str)>, String)> = rows
        .iter()
        .map(|(labels, value)| (labels.iter().map(|(k, v)| (*k, v.as_str())).collect(), value.clone()))
        .collect();
    page.table(name, "counter", help, &rows);
}

fn histograms(page: &mut Exposition, m: &Metrics, view: &View, snapshot: &Snapshot, base: &[(&str, &str)]) {
    let inter = inter_token(snapshot).from(INTER_TOKEN_LEAST_NS);
    let (times, sizes) = (&m.times, &m.sizes);
    for (name, help, histogram) in [
        ("vllm:time_to_first_token_seconds", "Arrival to the first token", &times.ttft),
        ("vllm:inter_token_latency_seconds", "Time between two tokens", &inter),
        ("vllm:time_per_output_token_seconds", "Time between two tokens", &inter),
        ("vllm:e2e_request_latency_seconds", "Arrival to the end", &times.e2e),
        ("vllm:request_queue_time_seconds", "Arrival to a slot", &times.queue),
        ("vllm:request_prefill_time_seconds", "Slot to the first token", &times.prefill),
        ("vllm:request_decode_time_seconds", "First token to the last", &times.decode),
        ("vllm:request_inference_time_seconds", "Slot to the last token", &times.inference),
    ] {
        page.histogram(name, help, Unit::Nanoseconds, base, histogram);
    }
    let within = |histogram: &Histogram| histogram.within(view.labels.n_ctx as u64);
    let tick = &snapshot.engine.tick_tokens;
    for (name, help, histogram) in [
        (
            "vllm:iteration_tokens_total",
            "Tokens of a tick",
            Histogram::counted(&TICK_TOKEN_BOUNDS, &tick.count, tick.sum),
        ),
        ("vllm:request_prompt_tokens", "Prompt tokens", within(&sizes.prompt)),
        ("vllm:request_generation_tokens", "Completion tokens", within(&sizes.generation)),
        ("vllm:request_params_n", "Choices asked for", sizes.choices.clone()),
        ("vllm:request_params_max_tokens", "Most tokens asked for", within(&sizes.max_tokens)),
    ] {
        page.histogram(name, help, Unit::One, base, &histogram);
    }
}
