//! The promise: committed ids are a function of model, prompt and sampling alone. Strategy, window, neighbours,
//! threads, prefill chunks and schedule change time only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use engine::api::{Strategy, WindowPolicy};
use engine::exec::CpuExecutor;
use engine::ids::{CheckpointId, StateSlot, TokenId};
use engine::schedule::Schedule;
use engine::step::{Executor, Shape, SlotOp, Step, StepResult};
use engine_bin::embed::Outcome;
use engine_tests::drive::{Cell, Subject, executor, run, run_on};
use engine_tests::fixtures::{fixture, skip, smollm2_gguf};
use proptest::prelude::{ProptestConfig, Strategy as _};
use sha2::{Digest as _, Sha256};

use crate::forward::qwen3next::qwen3next;

const WINDOWS: [u8; 6] = [0, 1, 2, 7, 15, 32];
const PARALLEL: [usize; 2] = [1, 4];
const THREADS: [usize; 2] = [1, 2];
const CHUNKS: [usize; 3] = [7, 64, 512];
const TEMPERATURES: [f32; 4] = [0.0, 0.3, 0.8, 1.0];

/// Every cell of a model under the fixed policy.
fn grid(strategies: &[Strategy]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &strategy in strategies {
        for window in WINDOWS {
            for parallel in PARALLEL {
                for threads in THREADS {
                    for chunk in CHUNKS {
                        for schedule in Schedule::ALL {
                            for temperature in TEMPERATURES {
                                let policy = WindowPolicy::Fixed;
                                cells.push(Cell {
                                    strategy,
                                    policy,
                                    window,
                                    parallel,
                                    threads,
                                    chunk,
                                    schedule,
                                    temperature,
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    cells
}

/// A few cells in which every pair of settings occurs.
pub fn covering(strategies: &[Strategy]) -> Vec<Cell> {
    pairwise(&grid(strategies))
}

/// The settings of a cell as small numbers, one per dimension.
fn levels(cell: &Cell) -> [usize; 7] {
    let at = |i: Option<usize>| i.expect("a value of the grid");
    [
        cell.strategy as usize,
        at(WINDOWS.iter().position(|w| *w == cell.window)),
        at(PARALLEL.iter().position(|p| *p == cell.parallel)),
        at(THREADS.iter().position(|t| *t == cell.threads)),
        at(CHUNKS.iter().position(|c| *c == cell.chunk)),
        at(Schedule::ALL.iter().position(|s| *s == cell.schedule)),
        at(TEMPERATURES.iter().position(|t| *t == cell.temperature)),
    ]
}

/// Cells in which every pair of settings of two dimensions occurs: greedily the cell with the most new pairs.
fn pairwise(cells: &[Cell]) -> Vec<Cell> {
    let pairs = |cell: &Cell| {
        let l = levels(cell);
        (0..7).flat_map(move |i| (i + 1..7).map(move |j| (i, l[i], j, l[j]))).collect::<Vec<_>>()
    };
    let mut open: std::collections::HashSet<_> = cells.iter().flat_map(&pairs).collect();
    let mut chosen = Vec::new();
    while !open.is_empty() {
        let fresh = |c: &&Cell| pairs(c).iter().filter(|p| open.contains(*p)).count();
        let best = *cells.iter().max_by_key(fresh).expect("a grid");
        for pair in pairs(&best) {
            open.remove(&pair);
        }
        chosen.push(best);
    }
    chosen
}

fn ids(outcomes: &[Outcome]) -> Vec<Vec<TokenId>> {
    outcomes.iter().map(|o| o.tokens.clone()).collect()
}

/// Reference outputs by temperature.
struct References(Vec<(f32, Vec<Outcome>)>);

impl References {
    fn new(subject: &Subject) -> Self {
        Self(TEMPERATURES.iter().map(|&t| (t, run(subject, &Cell::reference(t)))).collect())
    }

    fn check(&self, subject: &Subject, cell: &Cell) -> Vec<Outcome> {
        let (_, want) = self.0.iter().find(|(t, _)| *t == cell.temperature).expect("a temperature of the grid");
        let got = run(subject, cell);
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            assert_eq!(got.tokens, want.tokens, "{}: ids of prompt {i} under {cell:?}", subject.name);
            assert_eq!(got.text, want.text, "{}: text of prompt {i} under {cell:?}", subject.name);
            assert_eq!(got.finish, want.finish, "{}: end of prompt {i} under {cell:?}", subject.name);
        }
        got
    }
}

/// The pairwise set, and the same again under the adaptive policy for a part of it.
fn check_covering(subject: &Subject) {
    assert!(subject.longest() > 256 + 7, "{}: no prompt crosses an attention split", subject.name);
    let references = References::new(subject);
    let distinct: std::collections::HashSet<_> = references.0.iter().map(|(_, o)| ids(o)).collect();
    assert!(distinct.len() > 1, "{}: temperature changes nothing, so the test proves little", subject.name);
    let cells = covering(&subject.strategies());
    let mut accepted: HashMap<Strategy, u64> = HashMap::new();
    for (i, cell) in cells.iter().enumerate() {
        let adaptive = Cell { policy: WindowPolicy::Adaptive, ..*cell };
        for outcome in references.check(subject, cell) {
            *accepted.entry(cell.strategy).or_default() += outcome.report.total.accepted;
        }
        if i % 3 == 0 {
            references.check(subject, &adaptive);
        }
    }
    eprintln!("{}: {} cells, accepted drafts {accepted:?}", subject.name, cells.len());
    for strategy in subject.strategies() {
        let some = accepted.get(&strategy).is_some_and(|n| *n > 0);
        assert_eq!(some, strategy != Strategy::Off, "{}: {strategy:?} accepted {accepted:?}", subject.name);
    }
}

fn qwen35_tiny() -> Option<Subject> {
    fixture("qwen35-tiny/qwen35-tiny-Q8_0.gguf").map(|path| Subject::file("qwen35-tiny", path, 40).with_long_prompt())
}

fn qwen35moe_tiny() -> Option<Subject> {
    fixture("qwen35moe-tiny/qwen35moe-tiny-Q8_0.gguf")
        .map(|path| Subject::file("qwen35moe-tiny", path, 40).with_long_prompt())
}

/// The same in the layout of the older files.
fn qwen3next_tiny() -> Option<Subject> {
    qwen3next().map(|edit| Subject::code("qwen3next-tiny", edit.file(), None, 40).with_long_prompt())
}

fn qwen4exp_tiny() -> Option<Subject> {
    fixture("qwen4exp-tiny/qwen4exp-tiny-BF16.gguf")
        .map(|path| Subject::file("qwen4exp-tiny", path, 40).with_long_prompt())
}

fn nemotronh_tiny() -> Option<Subject> {
    fixture("nemotronh-tiny/nemotronh-tiny-Q8_0.gguf")
        .map(|path| Subject::file("nemotronh-tiny", path, 40).with_long_prompt())
}

fn smollm2() -> Option<Subject> {
    smollm2_gguf().map(|path| Subject::file("SmolLM2", path, 12))
}

#[test]
fn built_in_model_commits_the_same_ids_everywhere() {
    check_covering(&Subject::built_in());
}

#[test]
fn qwen35_tiny_commits_the_same_ids_everywhere() {
    if let Some(subject) = qwen35_tiny() {
        check_covering(&subject);
    }
}

#[test]
fn qwen35moe_tiny_commits_the_same_ids_everywhere() {
    if let Some(subject) = qwen35moe_tiny() {
        check_covering(&subject);
    }
}

#[test]
fn qwen3next_tiny_commits_the_same_ids_everywhere() {
    if let Some(subject) = qwen3next_tiny() {
        check_covering(&subject);
    }
}

#[test]
fn qwen4exp_tiny_commits_the_same_ids_everywhere() {
    if let Some(subject) = qwen4exp_tiny() {
        check_covering(&subject);
    }
}

#[test]
fn nemotronh_tiny_commits_the_same_ids_everywhere() {
    if let Some(subject) = nemotronh_tiny() {
        check_covering(&subject);
    }
}

#[test]
fn smollm2_commits_the_same_ids_everywhere() {
    if let Some(subject) = smollm2() {
        check_covering(&subject.with_long_prompt());
    }
}

#[test]
fn random_cells_commit_the_same_ids() {
    let subject = Subject::built_in();
    let references = References::new(&subject);
    let cells = grid(&subject.strategies());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let cell = (0..cells.len(), proptest::bool::ANY).prop_map(|(i, adaptive)| {
        let policy = if adaptive { WindowPolicy::Adaptive } else { WindowPolicy::Fixed };
        Cell { policy, ..cells[i] }
    });
    runner
        .run(&cell, |cell| {
            references.check(&subject, &cell);
            Ok(())
        })
        .expect("every cell equals its reference");
}

/// The whole grid of one model, or of `all`:
/// `IDENTITY_GRID=built-in cargo test --release -p engine-tests --test it whole_grid -- --nocapture`.
/// Prints one line a model: cells, and a hash over the reference ids that all of them gave.
#[test]
fn whole_grid() {
    let Some(wanted) = std::env::var_os("IDENTITY_GRID") else {
        skip("the whole identity grid", "IDENTITY_GRID is not set; the covering set and random cells ran");
        return;
    };
    let tiny = [qwen35_tiny(), qwen35moe_tiny(), qwen3next_tiny(), nemotronh_tiny(), qwen4exp_tiny()];
    let subjects = [Some(Subject::built_in())].into_iter().chain(tiny).chain([smollm2()]);
    let wanted = |s: &Subject| wanted == "all" || wanted == s.name;
    for subject in subjects.flatten().filter(wanted) {
        let references = References::new(&subject);
        let cells = grid(&subject.strategies());
        for cell in &cells {
            references.check(&subject, cell);
        }
        let mut hash = Sha256::new();
        for (_, outcomes) in &references.0 {
            for id in ids(outcomes).iter().flatten() {
                hash.update(id.0.to_le_bytes());
            }
        }
        let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        println!("identity-grid,{},{},{hex}", subject.name, cells.len());
    }
}

/// Hashes of the recurrent states seen at every `kv_len` of every sequence, in order of admission.
type Seen = HashMap<(usize, u32), [u8; 32]>;

/// Looks at each sequence between two steps: a fork of it is folded and its state hashed, the sequence itself is not
/// touched, so the fold of the next pass stays under test.
struct Spy {
    inner: CpuExecutor,
    spare: StateSlot,
    /// Sequences reset so far, and which of them a state row holds.
    sequences: usize,
    holds: HashMap<StateSlot, usize>,
    seen: Arc<Mutex<Seen>>,
}

impl Executor for Spy {
    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn run(&mut self, step: &Step, out: &mut StepResult) {
        for op in &step.ops {
            if let SlotOp::Reset { state } = op {
                self.holds.insert(*state, self.sequences);
                self.sequences += 1;
            }
        }
        self.inner.run(&Step { ops: step.ops.clone(), ..Step::default() }, out);
        for (&from, &kv_len) in step.trunk.state.iter().zip(&step.trunk.position) {
            let ops = vec![SlotOp::Fork { from, to: self.spare }, SlotOp::Fold { state: self.spare }];
            self.inner.run(&Step { ops, ..Step::default() }, out);
            let hash = Sha256::digest(self.inner.state_bytes(self.spare)).into();
            self.seen.lock().unwrap().insert((self.holds[&from], kv_len), hash);
        }
        self.inner.run(&Step { ops: Vec::new(), mtp: step.mtp.clone(), trunk: step.trunk.clone() }, out);
    }

    fn epoch(&mut self) -> u64 {
        self.inner.epoch()
    }

    fn checkpoint_bytes(&self, checkpoint: CheckpointId) -> Option<Vec<u8>> {
        self.inner.checkpoint_bytes(checkpoint)
    }
}

fn states(subject: &Subject, cell: &Cell) -> (Vec<Outcome>, Seen) {
    let seen = Arc::<Mutex<Seen>>::default();
    let spare = StateSlot(cell.parallel as u32);
    let spy =
        Spy { inner: executor(subject, cell, 1), spare, sequences: 0, holds: HashMap::new(), seen: Arc::clone(&seen) };
    let outcomes = run_on(subject, cell, Box::new(spy));
    let seen = seen.lock().unwrap().clone();
    (outcomes, seen)
}

/// After every commit the recurrent state, folded to `kv_len`, is the reference's at that length, bit for bit.
fn check_states(subject: &Subject) {
    for temperature in [0.0, 1.0] {
        let (want_ids, want) = states(subject, &Cell { chunk: 1, ..Cell::reference(temperature) });
        for strategy in subject.strategies() {
            for window in WINDOWS {
                for (chunk, parallel) in [(7, 1), (64, 4)] {
                    let cell = Cell { strategy, window, chunk, parallel, ..Cell::reference(temperature) };
                    let (got_ids, got) = states(subject, &cell);
                    assert_eq!(ids(&got_ids), ids(&want_ids), "{cell:?}");
                    for (at, hash) in &got {
                        assert_eq!(Some(hash), want.get(at), "{}: state of {at:?} under {cell:?}", subject.name);
                    }
                    assert!(got.len() > 8, "{cell:?} was looked at {} times", got.len());
                }
            }
        }
    }
}

#[test]
fn recurrent_state_equals_the_reference_after_every_commit() {
    check_states(&Subject::built_in());
    let tiny = [qwen35_tiny(), qwen35moe_tiny(), qwen3next_tiny(), nemotronh_tiny(), qwen4exp_tiny()];
    for subject in tiny.into_iter().flatten() {
        check_states(&subject);
    }
}
