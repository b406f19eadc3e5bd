//! An Executor that chooses what a recording says: the real Ledger and tick run around it unchanged.
//!
//! **Forced.** Nothing is computed. The choice at a position is the recorded token; a chain of the MTP block is looked up
//! in a table of what the block drafts there ([`super::drafts`]); a pass takes the time of a cost table, by which the
//! world's clock is put forward ([`SimClock`]).
//!
//! **Synthetic.** A real Executor runs every pass, and its choices are overruled: the answer is given, chains of the MTP
//! block draft it without fault, and whether a right draft is accepted is decided by seeded dice, so that time depends
//! on a rate of acceptance that is set and on nothing that the model knows. A draft that is refused is the token that is
//! committed all the same, by the target's own choice.
//!
//! A pass says whose window a row is: the seed of a request is the index of its script.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use engine::clock::Clock;
use engine::cost::Cost;
use engine::ids::{CheckpointId, StateSlot, TokenId};
use engine::step::{Executor, MtpWork, Shape, Source, Step, StepResult, TrunkWork};

use super::script::Script;

/// What answers a step before its choices are overruled.
pub enum Under {
    /// Nobody: times come from the table, drafts from the scripts.
    Table {
        /// What passes cost.
        cost: Cost,
        /// The world's clock.
        clock: Arc<AtomicU64>,
        /// Drafts of a script after each token.
        depth: usize,
    },
    /// A model.
    Model {
        /// It.
        executor: Box<dyn Executor>,
        /// Who decides what is accepted.
        dice: Dice,
    },
}

/// Dice for the acceptance of a draft: a pure function of script and position.
#[derive(Clone, PartialEq, Debug)]
pub struct Dice {
    /// Key.
    pub seed: u64,
    /// Chance of acceptance by position in the window; the last one goes on.
    pub rates: Vec<f64>,
}

impl Dice {
    /// Whether the draft at `at` of a window may be accepted as token `draw` of a script's answer.
    pub fn accept(&self, script: usize, draw: usize, at: usize) -> bool {
        let rate = self.rates.get(at).or(self.rates.last()).copied().unwrap_or(1.0);
        let mut h = self.seed ^ (script as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        h = mix(h ^ (draw as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9));
        // 53 bits are what a double holds.
        ((h >> 11) as f64 / (1u64 << 53) as f64) < rate
    }
}

/// The finaliser of splitmix64.
fn mix(mut h: u64) -> u64 {
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

/// Time of the machine, and in front of it the time that passes are taken to have cost.
pub struct SimClock {
    started: Instant,
    simulated: Arc<AtomicU64>,
}

impl SimClock {
    /// Starts now; passes add to `simulated`, in nanoseconds.
    pub fn new(simulated: Arc<AtomicU64>) -> Self {
        Self { started: Instant::now(), simulated }
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        let real = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        real.saturating_add(self.simulated.load(Ordering::Relaxed))
    }
}

/// The Executor.
pub struct Overlay {
    shape: Shape,
    scripts: Arc<Vec<Script>>,
    /// Script that each sequence follows, known from its first window on.
    follows: Vec<usize>,
    under: Under,
}

impl Overlay {
    /// For `slots` sequences of `scripts`, as a model of `shape`.
    pub fn new(shape: Shape, slots: usize, scripts: Arc<Vec<Script>>, under: Under) -> Self {
        Self { shape, scripts, follows: vec![0; slots], under }
    }

    fn script(&self, state: StateSlot) -> &Script {
        &self.scripts[self.follows[state.index()]]
    }

    /// Times and columns of a step that nobody computes; every chain is full.
    fn look_up(&self, step: &Step, cost: &Cost, clock: &AtomicU64, depth: usize, out: &mut StepResult) {
        out.clear();
        let MtpWork { state, position, depth: wanted, token_start, .. } = &step.mtp;
        if !state.is_empty() {
            out.draft_start.push(0);
        }
        for (segment, state) in state.iter().enumerate() {
            let script = self.script(*state);
            let count = token_start[segment + 1] - token_start[segment];
            // Position of the chain's anchor in the answer.
            let anchor = (position[segment] + count) as usize - 1;
            if wanted[segment] > 0 {
                let at = (anchor - script.prompt.len()) * depth;
                let chain = script.drafts.get(at..at + wanted[segment] as usize).unwrap_or_default();
                out.draft.extend(chain.iter().take_while(|draft| !draft.is_none()));
            }
            out.draft_start.push(out.draft.len() as u32);
        }
        out.draft_prob.resize(out.draft.len(), 1.0);
        let deepest = wanted.iter().copied().max().unwrap_or(0) as usize;
        out.times.draft_ns = cost.draft(deepest) as u64;
        let (segments, rows) = (step.trunk.state.len(), step.trunk.token.len());
        out.accepted.resize(segments, 0);
        out.next.resize(segments, TokenId::NONE);
        out.fault.resize(segments, None);
        if rows > 0 {
            out.times.trunk_ns = cost.trunk(rows) as u64;
        }
        clock.fetch_add(out.times.draft_ns + out.times.trunk_ns, Ordering::Relaxed);
    }

    /// Puts the answer in the place of every draft of a chain.
    fn draft_rightly(&self, mtp: &MtpWork, out: &mut StepResult) {
        for (segment, state) in mtp.state.iter().enumerate() {
            let (from, to) = (out.draft_start[segment] as usize, out.draft_start[segment + 1] as usize);
            if from == to {
                continue;
            }
            let script = self.script(*state);
            let end = (mtp.position[segment] + mtp.token_start[segment + 1] - mtp.token_start[segment]) as usize;
            // What stands behind the last token is drafted and cut: there is no room for it. Chains that are only run
            // to be timed play no script.
            let behind = end.checked_sub(script.prompt.len()).and_then(|at| script.target.get(at..));
            let answer = behind.unwrap_or_default();
            for (draft, right) in out.draft[from..to].iter_mut().zip(answer) {
                *draft = *right;
            }
        }
    }

    /// Verdicts of every window by its script.
    fn overrule(&mut self, trunk: &TrunkWork, out: &mut StepResult) {
        let mut rule = 0;
        for (segment, state) in trunk.state.iter().enumerate() {
            let (first, end) = (trunk.row_start[segment] as usize, trunk.row_start[segment + 1] as usize);
            if trunk.source[first] == Source::Prompt {
                continue;
            }
            let script = trunk.rules.filters[trunk.rules.filter[rule] as usize].seed as usize;
            let draw = trunk.rules.draw[rule] as usize;
            rule += end - first;
            self.follows[state.index()] = script;
            // The pass itself may have gone wrong.
            if out.fault[segment].is_some() {
                continue;
            }
            let target = &self.scripts[script].target;
            let agrees = |at: usize, draft: TokenId| {
                let right = target.get(draw + at) == Some(&draft);
                right && !matches!(&self.under, Under::Model { dice, .. } if !dice.accept(script, draw + at, at))
            };
            let drafts = &trunk.token[first + 1..end];
            let accepted = drafts.iter().enumerate().take_while(|(at, draft)| agrees(*at, **draft)).count();
            out.accepted[segment] = accepted as u32;
            // Behind the answer's last token nothing is committed, and passes that are only run to be timed play no script.
            out.next[segment] = target.get(draw + accepted).copied().unwrap_or(TokenId::NONE);
        }
    }
}

impl Executor for Overlay {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn run(&mut self, step: &Step, out: &mut StepResult) {
        match &mut self.under {
            Under::Model { executor, .. } => {
                executor.run(step, out);
                self.draft_rightly(&step.mtp, out);
            }
            Under::Table { cost, clock, depth } => {
                let (cost, clock, depth) = (cost.clone(), Arc::clone(clock), *depth);
                self.look_up(step, &cost, &clock, depth, out);
            }
        }
        self.overrule(&step.trunk, out);
    }

    fn epoch(&mut self) -> u64 {
        match &mut self.under {
            Under::Model { executor, .. } => executor.epoch(),
            Under::Table { .. } => 0,
        }
    }

    fn checkpoint_bytes(&self, checkpoint: CheckpointId) -> Option<Vec<u8>> {
        match &self.under {
            Under::Model { executor, .. } => executor.checkpoint_bytes(checkpoint),
            Under::Table { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dice_fall_alike_every_time_and_as_often_as_they_are_asked_to() {
        let dice = Dice { seed: 7, rates: vec![0.8, 0.5] };
        let share = |at: usize| (0..4000).filter(|draw| dice.accept(3, *draw, at)).count() as f64 / 4000.0;
        assert!((share(0) - 0.8).abs() < 0.03 && (share(1) - 0.5).abs() < 0.03);
        assert_eq!(share(9), share(1), "the last rate goes on");
        let other = Dice { seed: 8, ..dice.clone() };
        assert!((0..100).any(|draw| dice.accept(3, draw, 1) != other.accept(3, draw, 1)));
        assert!((0..100).any(|draw| dice.accept(3, draw, 1) != dice.accept(4, draw, 1)));
        let sure = |rate| Dice { rates: vec![rate], ..dice.clone() };
        assert!((0..1000).all(|draw| sure(1.0).accept(0, draw, 0) && !sure(0.0).accept(0, draw, 0)));
    }
}
