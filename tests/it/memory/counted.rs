//! Rooms counted one by one: what an executor and the tables ask the allocator for, beside what was planned for them.
//! A room that is forgotten, or planned at another size, shows whatever its share of the whole.

use std::alloc::System;
use std::process;
use std::sync::Arc;

use engine::api::Command;
use engine::clock::Monotonic;
use engine::cost::Cost;
use engine::engine::{Settings, start};
use engine::exec::{CpuExecutor, ExecOptions};
use engine::ids::{CheckpointId, StateSlot};
use engine::limits::Limits;
use engine::memory::{Held, Memory, Part};
use engine::model::Model;
use engine::model::load::{LoadOptions, Planned, Repack};
use engine::schedule::Schedule;
use engine::step::{Executor as _, SlotOp};
use engine_bin::bench::single::{Single, Want};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use crate::forward::edit::Edit;
use crate::forward::invariance::ids;
use crate::forward::qwen3next::qwen3next;

#[global_allocator]
pub(super) static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes asked for and not given back.
fn live() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// What is neither planned nor worth it: lists of operations and names, channels' own heads, handles.
const LOOSE_WEIGHTS: usize = 40 << 10;
const LOOSE: usize = 4 << 10;
/// Beside the tables stand the threads with their channels.
const LOOSE_TABLES: usize = 8 << 10;
/// Scratch memory is planned for the worst pass, in which every row chooses one expert: this part of a plan is not met.
const SLACK: usize = 40;

/// Together they have every kind of room.
const MODELS: [&str; 4] = [
    "qwen35-tiny/qwen35-tiny-Q8_0.gguf",
    "qwen35moe-tiny/qwen35moe-tiny-Q8_0.gguf",
    "nemotronh-tiny/nemotronh-tiny-Q8_0.gguf",
    "qwen4exp-tiny/qwen4exp-tiny-BF16.gguf",
];

/// Rooms of the weights.
const WEIGHTS: [&str; 2] = ["repacked weights", "small tensors"];

fn limits() -> Limits {
    Limits { checkpoints: 8, ..Limits::new(4, 640) }
}

/// As many requests as make even small tables large.
fn tables_limits() -> Limits {
    Limits { prefix_cache: true, checkpoints: 8, ..Limits::new(64, 640) }
}

/// An executor that has worked in all its rooms, and the bytes that it holds.
fn worked(model: &Arc<Model>, options: ExecOptions) -> (CpuExecutor, usize) {
    let before = live();
    let limits = limits();
    let executor = CpuExecutor::new(Arc::clone(model), limits.clone(), options);
    let chunk = executor.shape().hidden_rows.min(limits.step_rows);
    let mut single = Single::new(executor, &limits);
    let tokens = ids(chunk.min(560), 3);
    single.trunk(&tokens, tokens.len(), Want::ProbeAll);
    single.mtp(&tokens, 0, true);
    let anchor = single.trunk(&tokens[..1], 1, Want::Choice).next[0].0;
    single.mtp(&[tokens[0], anchor], 15, true);
    single.trunk(&[&[anchor], &tokens[..32]].concat(), 1, Want::ProbeAll);
    single.truncate(tokens.len() as u32 + 2);
    for checkpoint in 0..limits.checkpoints as u32 {
        single.op(SlotOp::Fold { state: StateSlot(0) });
        single.op(SlotOp::Save { state: StateSlot(0), checkpoint: CheckpointId(checkpoint) });
    }
    single.flush();
    // What passes answered goes with the caller.
    let executor = single.into_executor();
    (executor, live().saturating_sub(before))
}

/// Rooms so small in every model here that no count can tell them from what is loose: a few rows of floats, and what is
/// a byte or a few for every token of a vocabulary of 512.
const TOO_SMALL: [&str; 7] = [
    "block tables of a pass",
    "counters and gauges",
    "n-gram histories",
    "page tables",
    "penalties",
    "recurrent weights",
    "sampling",
];

/// Rooms that were planned, and those of them whose absence a count would have shown.
#[derive(Default)]
struct Judged {
    planned: Vec<&'static str>,
    shown: Vec<&'static str>,
    faults: Vec<String>,
}

impl Judged {
    /// Holds what was found against the sum of `parts`.
    fn hold(&mut self, what: &str, parts: &[Part], found: usize, loose: usize) {
        let parts: Vec<&Part> = parts.iter().filter(|p| p.held == Held::Memory).collect();
        let planned: usize = parts.iter().map(|p| p.bytes).sum();
        let rooms: Vec<String> = parts.iter().map(|p| format!("{} {}", p.name, p.bytes)).collect();
        let text = format!("{what}: planned {planned}, found {found}: {}", rooms.join(", "));
        println!("{text}");
        if found > planned + loose || planned > found + planned / SLACK {
            self.faults.push(text);
        }
        for part in parts {
            self.planned.push(part.name);
            if found > planned - part.bytes + loose {
                self.shown.push(part.name);
            }
        }
    }
}

/// Runs alone in its process: whoever else allocated would be counted.
fn count() {
    let mut judged = Judged::default();
    let options = ExecOptions { threads: 2, ..ExecOptions::default() };
    let stored = MODELS.iter().filter_map(|path| Some((*path, Edit::of(path)?)));
    for (path, edit) in stored.chain(qwen3next().map(|edit| ("qwen3next", edit))) {
        let file = edit.file();
        let planned = Planned::new(&file, None, LoadOptions::default()).unwrap();
        let whole = Memory::of_plan(&planned.plan, &[], Repack::On, &tables_limits(), &options).unwrap();
        let before = live();
        let mut model = Arc::new(planned.clone().load(&file, None, Repack::On).unwrap());
        let weights: Vec<Part> = whole.parts.iter().filter(|p| WEIGHTS.contains(&p.name)).copied().collect();
        judged.hold(&format!("{path}, weights"), &weights, live().saturating_sub(before), LOOSE_WEIGHTS);

        let memory = Memory::of_executor(&model, &limits(), &options).unwrap();
        let (executor, found) = worked(&model, options);
        judged.hold(&format!("{path}, executor"), &memory.parts, found, LOOSE);
        drop(executor);

        let executor = CpuExecutor::new(Arc::clone(&model), tables_limits(), options);
        let own = Memory::of_executor(&model, &tables_limits(), &options).unwrap();
        let in_executor = |part: &&Part| own.parts.iter().any(|p| p.name == part.name);
        let tables = whole.parts.iter().filter(|p| !WEIGHTS.contains(&p.name) && !in_executor(p)).copied();
        let tables: Vec<Part> = tables.collect();
        let before = live();
        let settings =
            Settings { schedule: Schedule::Inline, cost: Some(Cost::scripted(|rows| 1e6 * rows as f64, 1e5)) };
        let clock = Box::new(Monotonic::default());
        let handle = start(Box::new(executor), &tables_limits(), Arc::default(), settings, clock).unwrap();
        let found = live().saturating_sub(before);
        handle.commands.send(Command::Stop).unwrap();
        handle.join().unwrap();
        judged.hold(&format!("{path}, tables"), &tables, found, LOOSE_TABLES);

        // What a block that does not fit gives back: all that was copied of its matrices.
        let trunk = Planned::new(&edit.trunk().file(), None, LoadOptions::default()).unwrap();
        let trunk = Memory::of_plan(&trunk.plan, &[], Repack::On, &tables_limits(), &options).unwrap();
        let copied = |memory: &Memory| {
            memory.parts.iter().find(|p| p.name == "repacked weights").expect("a room of every plan").bytes
        };
        let own = copied(&whole) - copied(&trunk);
        let before = live();
        Arc::get_mut(&mut model).expect("nothing else has it").drop_mtp(String::new());
        let back = before - live();
        println!("{path}: {back} bytes given back of a block with {own} of copies");
        if own == 0 || back < own {
            judged.faults.push(format!("{path}: {back} bytes given back of a block with {own} of copies"));
        }
    }
    judged.planned.sort_unstable();
    judged.planned.dedup();
    assert!(judged.faults.is_empty(), "{}", judged.faults.join("\n"));
    let hidden: Vec<_> = judged.planned.iter().filter(|name| !judged.shown.contains(name)).collect();
    assert!(hidden.iter().all(|name| TOO_SMALL.contains(name)), "too small to be judged: {hidden:?}");
    println!("{} rooms counted", judged.planned.len());
}

/// Runs the test `name` in a process where nobody else allocates: there it calls `count`, whose output has `done` in it.
pub(super) fn alone(name: &str, done: &str, count: impl FnOnce()) {
    const ALONE: &str = "SLIPSTREAM_COUNT_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return count();
    }
    let output = process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains(done), "{text}\n{errors}");
    eprintln!("{text}");
}

#[test]
fn what_is_allocated_is_what_is_planned() {
    alone("memory::counted::what_is_allocated_is_what_is_planned", " rooms counted", count);
}
