//! What the engine counts: pages, passes, systems. All of one tick.

use engine::gauges::{Snapshot, State};
use engine::tables::totals::{FORWARD, TIME_BOUNDS_NS, TickKind};
use engine::tick::TICK;

use crate::serve::metrics::exposition::{Exposition, Histogram, Unit};
use crate::serve::view::View;

pub(super) fn write(page: &mut Exposition, view: &View, snapshot: &Snapshot) {
    let e = &snapshot.engine;
    let labels = &view.labels;
    let (layers, nextn) = (labels.trunk_layers.to_string(), labels.nextn.to_string());
    let slots = snapshot.rows.len();
    let about = [
        ("model", labels.model.as_str()),
        ("arch", labels.arch.as_str()),
        ("ftype", labels.ftype.as_str()),
        ("trunk_layers", layers.as_str()),
        ("nextn", nextn.as_str()),
        ("strategy", labels.strategy),
    ];
    page.info("engine_model_info", "The model", &about);
    let used = snapshot.rows.iter().filter(|row| row.state() != State::Free).count();
    page.gauge("engine_slots", "Choices that may run at once", slots);
    page.gauge("engine_state_slots", "Sequences that may have a state", slots);
    page.gauge("engine_state_slots_used", "Sequences that have one", used);
    let pages = [("free", e.pages_free), ("used", e.pages_used), ("cached", e.pages_cached)];
    page.by("engine_kv_pages", "gauge", "KV pages by who has them", "state", &pages);
    page.gauge("engine_kv_usage_ratio", "Pages that choices have, of all", usage(view, snapshot));
    page.gauge("engine_checkpoints", "Checkpoints that the prefix cache holds", e.checkpoints);
    page.gauge("engine_checkpoint_bytes", "Bytes of these", e.checkpoint_bytes);
    page.gauge("engine_suffix_index_bytes", "Bytes of the suffix index", e.suffix_bytes);
    page.counter("engine_preemptions_total", "Times a row was preempted", e.preempted);
    let help = "Choices of which no MTP draft was accepted while another's were: a fault of the engine, or bad luck";
    page.counter("engine_spec_mute_rows_total", help, e.mute);
    let kinds = [("page", e.pages_evicted), ("checkpoint", e.checkpoints_evicted)];
    let help = "What the prefix cache gave up to make room";
    page.by("engine_evictions_total", "counter", help, "kind", &kinds);
    let ticks = TickKind::ALL.map(|kind| (kind.name(), e.ticks[kind as usize]));
    page.by("engine_ticks_total", "counter", "Ticks by what their pass had to do", "kind", &ticks);
    let systems = TICK.map(|(system, _)| (system.name(), e.system_ns[system as usize]));
    let (name, help) = ("engine_system_seconds_total", "Time of every system of the tick");
    page.by_in(Unit::Nanoseconds, name, "counter", help, "system", &systems);
    let forward = |of: [u64; FORWARD.len()]| std::array::from_fn::<_, { FORWARD.len() }, _>(|i| (FORWARD[i], of[i]));
    let (name, help) = ("engine_forward_seconds_total", "Time of passes; one of several kinds is shared out by rows");
    page.by_in(Unit::Nanoseconds, name, "counter", help, "kind", &forward(e.forward_ns));
    page.by("engine_forward_rows_total", "counter", "Rows of passes", "kind", &forward(e.forward_rows));
    page.histogram("engine_step_seconds", "Between two commits of a choice", Unit::Nanoseconds, &[], &step(snapshot));
    let help = "The same by the tokens of the later commit, once a token";
    page.histogram("engine_inter_token_seconds", help, Unit::Nanoseconds, &[], &inter_token(snapshot));
}

/// Pages that choices have, of all.
pub(super) fn usage(view: &View, snapshot: &Snapshot) -> f64 {
    snapshot.engine.pages_used as f64 / view.pages() as f64
}

fn step(snapshot: &Snapshot) -> Histogram {
    let step = &snapshot.engine.step;
    Histogram::counted(&TIME_BOUNDS_NS, &step.count, step.sum)
}

/// Time between two tokens.
pub(super) fn inter_token(snapshot: &Snapshot) -> Histogram {
    let inter = &snapshot.engine.inter_token;
    Histogram::counted(&TIME_BOUNDS_NS, &inter.count, inter.sum)
}
