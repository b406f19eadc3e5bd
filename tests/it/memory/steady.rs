//! Allocations of ticks once everything is warm: none, whoever drafts, whatever the model is made of.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam::channel::bounded;
use engine::api::{Command, Sampling, Strategy, Submission, WindowPolicy};
use engine::cost::Cost;
use engine::exec::{CpuExecutor, ExecOptions};
use engine::ids::{Ticket, TokenId};
use engine::limits::Limits;
use engine::tables::requests::Phase;
use engine::tick::tick;
use engine_tests::drive::Subject;
use engine_tests::fixtures::fixture;
use engine_tests::toy::Rig;
use parking_lot::Mutex;

use super::counted::{ALLOCATOR, alone};

/// Ticks until everything has its size, and ticks that are counted.
const WARM: usize = 20;
const COUNTED: usize = 40;

/// Rows that decode, all of one strategy, half of them drawing. Returns what was allocated in the counted ticks.
fn allocations(subject: &Subject, strategy: Strategy, policy: WindowPolicy, rows: usize, threads: usize) -> usize {
    let mut limits = Limits::new(rows, 1600);
    limits.prefix_cache = true;
    limits.checkpoints = 4;
    let options = ExecOptions { threads, ..ExecOptions::default() };
    let executor = CpuExecutor::new(Arc::clone(&subject.opened.model), limits.clone(), options);
    let mut rig = Rig::of_executor(&limits, Box::new(executor), Arc::clone(&subject.opened.pieces));
    rig.world.ledger.cost = Cost::scripted(|rows| 1e6 * (1.0 + 0.05 * rows as f64), 1e5);
    // The widest pass of all: whatever grows with rows has grown.
    let long = (0..limits.step_rows as u32 + 100).map(|i| TokenId(i * 7919 % subject.opened.model.vocab as u32));
    let speculation = engine_tests::toy::speculation(Strategy::Off, 1);
    rig.send(Command::Submit(Box::new(Submission::greedy(Ticket(9999), long.collect(), 1, speculation))));
    for row in 0..rows {
        let mut speculation = engine_tests::toy::speculation(strategy, 6);
        (speculation.policy, speculation.window_max) = (policy, 15);
        let prompt = subject.prompts[row % subject.prompts.len()].clone();
        let mut submission = Submission::greedy(Ticket(row as u64), prompt, 1600, speculation);
        submission.stop.ignore_eos = true;
        if row % 2 == 1 {
            submission.sampling =
                Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, seed: row as u64, ..Sampling::greedy() };
        }
        rig.send(Command::Submit(Box::new(submission)));
    }
    let next = |rig: &mut Rig| {
        let before = ALLOCATOR.stats();
        tick(&mut rig.world);
        let after = ALLOCATOR.stats();
        while rig.events.try_recv().is_ok() {}
        after.allocations + after.reallocations - before.allocations - before.reallocations
    };
    let decodes = |rig: &Rig| rig.world.ledger.requests.phase.iter().filter(|p| **p == Phase::Decode).count();
    while decodes(&rig) < rows {
        next(&mut rig);
    }
    for _ in 0..WARM {
        next(&mut rig);
    }
    // Workers that have nothing to do go to sleep, and what a thread needs for that it makes when it first does.
    thread::sleep(Duration::from_millis(30));
    let sum = (0..COUNTED).map(|_| next(&mut rig)).sum();
    assert_eq!(decodes(&rig), rows, "every row still decodes");
    sum
}

/// Makes what a thread needs for waiting on a lock: on a busy machine any lock may be taken.
fn wait_once() {
    let lock = Arc::new(Mutex::new(()));
    let held = lock.lock();
    let other = Arc::clone(&lock);
    let (ready, is_ready) = bounded(1);
    let waits = thread::spawn(move || {
        let held = other.lock();
        ready.send(()).unwrap();
        thread::sleep(Duration::from_millis(30));
        drop(held);
    });
    drop(held);
    is_ready.recv().unwrap();
    drop(lock.lock());
    waits.join().unwrap();
}

/// Runs alone in its process.
fn count() {
    wait_once();
    let mut subjects = vec![Subject::built_in()];
    for (name, path) in [
        ("llama", "llama-tiny/llama-tiny-Q8_0.gguf"),
        ("qwen35", "qwen35-tiny/qwen35-tiny-Q8_0.gguf"),
        ("qwen35moe", "qwen35moe-tiny/qwen35moe-tiny-Q8_0.gguf"),
        ("nemotron-h", "nemotronh-tiny/nemotronh-tiny-Q8_0.gguf"),
        ("qwen4exp", "qwen4exp-tiny/qwen4exp-tiny-BF16.gguf"),
    ] {
        subjects.extend(fixture(path).map(|path| Subject::file(name, path, 600)));
    }
    let mut faults = Vec::new();
    let mut cells = 0;
    for subject in &subjects {
        for strategy in subject.strategies() {
            for (policy, rows, threads) in
                [(WindowPolicy::Fixed, 3, 1), (WindowPolicy::Adaptive, 5, 2), (WindowPolicy::Fixed, 64, 1)]
            {
                if rows == 64 && subject.name != "built-in" {
                    continue;
                }
                let found = allocations(subject, strategy, policy, rows, threads);
                cells += 1;
                if found > 0 {
                    let ticks = COUNTED as f64;
                    let each = found as f64 / ticks;
                    faults.push(format!("{} {strategy:?} {policy:?} {rows} rows: {each:.2} a tick", subject.name));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    println!("{cells} cells without an allocation");
}

#[test]
fn a_warm_tick_allocates_nothing() {
    alone("memory::steady::a_warm_tick_allocates_nothing", " cells without an allocation", count);
}
