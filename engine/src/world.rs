//! The world: the Ledger (ids, history, counters), the Executor (payload), and the step that goes between them.

use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, Select, Sender};

use crate::api::{Command, Event};
use crate::clock::Clock;
use crate::cost::{COST_ROWS, Cost};
use crate::gauges::{Gauges, Snapshot};
use crate::ids::{Slot, StateSlot, Ticket, TokenId};
use crate::limits::{Limits, LimitsError, MTP_TOKENS_DEFAULT};
use crate::pieces::Pieces;
use crate::rules::History;
use crate::step::{Executor, Fault, Filters, NO_LOGPROBS, Shape, SlotOp, Source, Step, StepResult};
use crate::systems;
use crate::tables::constraints::Constraints;
use crate::tables::counters::{self, Counters};
use crate::tables::outbox::Outbox;
use crate::tables::output::Outputs;
use crate::tables::pages::Pages;
use crate::tables::plans::Plans;
use crate::tables::prefix::Prefix;
use crate::tables::requests::{Phase, Requests};
use crate::tables::suffix::Suffix;
use crate::tables::survival::Survival;
use crate::tables::tokens::Tokens;
use crate::tables::totals::Totals;
use crate::tables::waiting::Waiting;
use crate::tables::windows::Windows;
use crate::tick::System;

/// Where the engine stands on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Life {
    /// Finish what runs, refuse what waits, take nothing new.
    pub draining: bool,
    /// End now.
    pub stopping: bool,
    /// Nobody can send a command any more: finish what is here.
    pub orphan: bool,
}

/// Ids, history, counters. All tables are sized from `limits`.
#[derive(Debug)]
#[expect(missing_docs, reason = "each field is a table, described in its module")]
pub struct Ledger {
    pub limits: Limits,
    pub shape: Shape,
    pub pieces: Arc<Pieces>,
    pub life: Life,
    pub waiting: Waiting,
    pub requests: Requests,
    pub tokens: Tokens,
    pub pages: Pages,
    pub prefix: Prefix,
    pub suffix: Suffix,
    pub survival: Survival,
    pub outputs: Outputs,
    pub constraints: Constraints,
    pub counters: Counters,
    pub plans: Plans,
    pub windows: Windows,
    pub outbox: Outbox,
    pub totals: Totals,
    pub cost: Cost,
    pub(crate) suffix_bytes: u64,
    history: History,
    draft: Vec<TokenId>,
    /// The Executor's, when the prefix cache was last looked at.
    epoch: u64,
}

impl Ledger {
    /// Empty tables for a model of `shape`.
    ///
    /// # Errors
    /// If the limits contradict each other.
    ///
    /// # Panics
    /// If the shape has an MTP block and no room for a hidden row.
    pub fn new(limits: Limits, shape: Shape, pieces: Arc<Pieces>) -> Result<Self, LimitsError> {
        limits.check()?;
        assert!(!shape.mtp || shape.hidden_rows >= 1, "an MTP block without a hidden ring");
        let (slots, context) = (limits.slots, limits.context);
        Ok(Self {
            life: Life::default(),
            waiting: Waiting::default(),
            requests: Requests::new(slots),
            tokens: Tokens::new(slots, context),
            pages: Pages::new(&limits),
            prefix: Prefix::new(&limits, shape.recurrent || shape.mtp),
            suffix: Suffix::new(slots, context),
            survival: Survival::new(slots),
            outputs: Outputs::new(slots),
            constraints: Constraints::new(slots, shape.vocab),
            counters: Counters::new(slots, limits.window_max),
            plans: Plans::new(slots),
            windows: Windows::new(slots, limits.window_max),
            outbox: Outbox::new(slots, limits.events, limits.window_max + 1),
            totals: Totals::new(slots),
            suffix_bytes: Suffix::bytes_for(slots, context) as u64,
            cost: Cost::default(),
            history: History::new(shape.vocab),
            draft: Vec::new(),
            epoch: 0,
            limits,
            shape,
            pieces,
        })
    }

    /// When the first request runs out of its time; those that wait are told so when the outbox has room.
    fn deadline_ns(&self) -> Option<u64> {
        let live = self.requests.live.iter().map(|slot| self.requests.deadline_ns[slot.index()]);
        let waiting = if self.outbox.has_room() { self.waiting.deadline_ns() } else { u64::MAX };
        live.chain([waiting]).min().filter(|at| *at < u64::MAX)
    }

    /// Asserts every invariant of every table.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        self.requests.check();
        self.pages.check();
        self.prefix.check(&self.pages);
        assert_eq!(
            self.requests.live.iter().map(|s| self.pages.blocks(*s)).sum::<usize>(),
            (0..self.limits.slots as u32).map(|s| self.pages.blocks(Slot(s))).sum::<usize>(),
            "a free row owns pages"
        );
        for &slot in &self.requests.live {
            let s = slot.index();
            let (len, kv) = (self.requests.token_len[s], self.requests.kv_len[s]);
            assert!(len as usize <= self.limits.context);
            assert!(self.pages.capacity(slot) >= kv as usize, "{slot}: {kv} positions without pages");
            assert!(self.pages.blocks(slot) <= Limits::pages_for(kv as usize + 1), "{slot}: pages past the anchor");
            assert!(self.suffix.indexed_len(slot) <= len, "{slot}: more indexed than committed");
            let m = self.suffix.matched(slot);
            assert!(m.len == 0 || m.end + 1 < self.suffix.indexed_len(slot), "{slot}: a match without continuation");
            let vocab = self.shape.vocab as u32;
            debug_assert!(self.tokens.history(slot, len).iter().all(|t| t.0 < vocab));
            let report = &self.counters.report[s];
            counters::check(report);
            assert_eq!(report.completion_tokens, u64::from(self.requests.completion_len(slot)));
            if self.shape.mtp && self.requests.phase[s] != Phase::Done {
                assert!((kv + 1 - self.requests.mtp_len[s]) as usize <= self.shape.hidden_rows);
            }
        }
        for row in 0..self.windows.len() {
            assert!(self.windows.draft_len(row) <= self.limits.window_max);
        }
    }
}

/// Everything a tick touches. Whoever holds it is the only writer.
pub struct World {
    /// Ids, history, counters.
    pub ledger: Ledger,
    /// Payload.
    pub executor: Box<dyn Executor>,
    /// What the Ledger says to the Executor; its `ops` gather until the next call.
    pub step: Step,
    /// What the Executor answered last.
    pub result: StepResult,
    clock: Box<dyn Clock>,
    inbox: Receiver<Command>,
    events: Sender<Event>,
    /// Something happened in the tick in progress.
    moved: bool,
    /// What [`World::decode_ns`] tells.
    decode_ns: u64,
    /// What the world shows of itself, and where that is made.
    gauges: Arc<Gauges>,
    snapshot: Snapshot,
}

impl World {
    /// A world at rest.
    pub fn new(
        ledger: Ledger,
        executor: Box<dyn Executor>,
        clock: Box<dyn Clock>,
        inbox: Receiver<Command>,
        events: Sender<Event>,
    ) -> Self {
        let gauges = Arc::new(Gauges::new(&ledger.limits));
        let (step, result) = (Step::with_room(&ledger.limits), StepResult::with_room(&ledger.limits));
        let mut world = Self {
            snapshot: Snapshot::new(ledger.limits.slots),
            ledger,
            executor,
            step,
            result,
            clock,
            inbox,
            events,
            moved: false,
            decode_ns: 0,
            gauges,
        };
        world.publish();
        world
    }

    /// What the world shows of itself, tick by tick.
    pub fn gauges(&self) -> Arc<Gauges> {
        Arc::clone(&self.gauges)
    }

    fn publish(&mut self) {
        self.snapshot.take(&self.ledger, self.clock.now_ns());
        self.gauges.publish(&mut self.snapshot);
    }

    /// Runs one system.
    pub fn run(&mut self, system: System) {
        let from_ns = self.clock.now_ns();
        self.run_untimed(system);
        self.ledger.totals.system_ns[system as usize] += self.clock.now_ns().saturating_sub(from_ns);
    }

    fn run_untimed(&mut self, system: System) {
        if system == System::Emit {
            // First, so that whoever hears of an end finds nothing held for it any more.
            self.publish();
        }
        let Self { ledger: l, executor, step, result, clock, .. } = self;
        let clock = clock.as_ref();
        let executor = executor.as_mut();
        match system {
            System::Intake => {
                self.moved = systems::intake::intake(
                    &self.inbox,
                    &mut l.waiting,
                    &mut l.requests,
                    &mut l.pages,
                    &mut l.outbox,
                    &mut l.life,
                    &l.limits,
                    &l.shape,
                    clock.now_ns(),
                );
            }
            System::Admit => {
                let epoch = executor.epoch();
                if std::mem::replace(&mut l.epoch, epoch) != epoch {
                    l.prefix.forget_all(&mut l.pages, &mut step.ops);
                    // Rows that were to begin on it are lost.
                    step.ops.retain(|op| !matches!(op, SlotOp::Adopt { .. }));
                }
                self.moved |= systems::admit::admit(
                    &mut l.waiting,
                    &mut l.requests,
                    &mut l.tokens,
                    &mut l.pages,
                    &mut l.prefix,
                    &mut l.suffix,
                    &mut l.survival,
                    &mut l.outputs,
                    &mut l.constraints,
                    &mut l.counters,
                    &mut l.outbox,
                    &mut step.ops,
                    clock.now_ns(),
                );
            }
            System::IndexSuffix => {
                systems::index_suffix::index_suffix(&l.requests, &l.tokens, &mut l.suffix, &mut l.counters, clock);
            }
            System::Plan => systems::plan::plan(
                &mut l.requests,
                &l.tokens,
                &mut l.pages,
                &mut l.prefix,
                &l.suffix,
                &mut l.survival,
                &mut l.counters,
                &mut l.plans,
                &mut l.windows,
                &mut step.ops,
                &l.cost,
                &l.pieces,
                &l.limits,
                &l.shape,
                clock.now_ns(),
            ),
            System::DraftMtp => {
                result.clear();
                let rows = systems::draft_mtp::draft_mtp(
                    &mut l.requests,
                    &l.tokens,
                    &l.pages,
                    &l.plans,
                    &mut l.windows,
                    &mut l.constraints,
                    &mut l.counters,
                    &mut l.cost,
                    &l.pieces,
                    &l.shape,
                    executor,
                    step,
                    result,
                );
                l.totals.drafted(rows, result);
                self.decode_ns = result.times.draft_ns;
            }
            System::ExtendSuffix => systems::extend_suffix::extend_suffix(
                &l.requests,
                &l.tokens,
                &l.suffix,
                &l.plans,
                &mut l.windows,
                &mut l.constraints,
                &mut l.counters,
                &l.pieces,
                &mut l.draft,
                clock,
            ),
            System::Prefill => {
                systems::keep::keep(
                    &mut l.requests,
                    &l.tokens,
                    &mut l.pages,
                    &mut l.prefix,
                    &mut l.counters,
                    &l.plans,
                    &l.windows,
                    &mut step.ops,
                );
                systems::prefill::prefill(&l.requests, &l.tokens, &l.pages, &l.plans, &mut step.trunk);
            }
            System::Verify => {
                self.moved |= systems::verify::verify(
                    &l.requests,
                    &l.tokens,
                    &l.pages,
                    &l.windows,
                    &mut l.constraints,
                    &mut l.counters,
                    &mut l.history,
                    &mut l.cost,
                    &l.pieces,
                    clock,
                    executor,
                    step,
                    result,
                );
                l.totals.passed(&step.trunk, result);
                let prompt = step.trunk.source.first() == Some(&Source::Prompt);
                let pass_ns = result.times.trunk_ns + result.times.choose_ns;
                self.decode_ns = if prompt || pass_ns == 0 { 0 } else { self.decode_ns + pass_ns };
            }
            System::Commit => {
                systems::commit::commit(
                    &mut l.requests,
                    &mut l.tokens,
                    &mut l.pages,
                    &mut l.survival,
                    &mut l.outputs,
                    &mut l.constraints,
                    &mut l.counters,
                    &mut l.outbox,
                    &mut step.ops,
                    &l.plans,
                    &l.windows,
                    &step.trunk,
                    result,
                    &l.pieces,
                    &l.limits,
                    l.shape.vocab,
                    clock.now_ns(),
                );
                // What was kept of a lost row in this tick is no more there than the row.
                if result.fault.contains(&Some(Fault::Lost)) {
                    l.prefix.forget_all(&mut l.pages, &mut step.ops);
                }
                let prompt_rows = step.trunk.source.iter().take_while(|source| **source == Source::Prompt).count();
                l.totals.committed(&l.requests, prompt_rows, !step.trunk.token.is_empty());
                l.totals.watch(&l.requests, &l.counters);
                step.trunk.clear();
            }
            System::Retire => {
                systems::retire::retire(
                    &mut l.requests,
                    &l.tokens,
                    &mut l.pages,
                    &mut l.prefix,
                    &mut l.counters,
                    &mut l.outbox,
                    &mut l.outputs,
                    &mut l.constraints,
                    &mut step.ops,
                    clock.now_ns(),
                );
            }
            System::Emit => {
                self.moved |=
                    systems::emit::emit(&mut l.requests, &mut l.pages, &mut l.outbox, &mut l.life, &self.events);
            }
        }
    }

    /// The world's clock.
    pub fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// Time of the last tick's chains and pass as the Executor saw it; 0 when nothing ran or a prompt took part.
    pub fn decode_ns(&self) -> u64 {
        self.decode_ns
    }

    /// Whether the last tick changed anything. If not, the next one will not either, until a command comes, the reader of
    /// the events makes room, or the time of a request is over.
    pub fn moved(&self) -> bool {
        self.moved
    }

    /// Whether there will be no further tick.
    pub fn ended(&self) -> bool {
        let l = &self.ledger;
        let empty = l.requests.live.is_empty() && l.waiting.is_empty() && l.outbox.is_empty();
        // Orphaned rows that wait for a Resume wait in vain.
        let in_vain = l.life.orphan && !self.moved && l.outbox.is_empty();
        l.life.stopping || in_vain || (empty && (l.life.draining || l.life.orphan))
    }

    /// Between ticks: sleeps until something can happen. Checks the world first, as there is time.
    pub fn park(&self) {
        if self.moved || self.ended() {
            return;
        }
        self.check();
        let mut select = Select::new();
        if !self.ledger.life.orphan && self.ledger.outbox.has_room() {
            select.recv(&self.inbox);
        }
        if !self.ledger.outbox.is_empty() {
            select.send(&self.events);
        }
        match self.ledger.deadline_ns() {
            None => {
                select.ready();
            }
            // Whatever comes first; nobody minds if it is the time.
            Some(at) => {
                let left = at.saturating_sub(self.clock.now_ns());
                let _ = select.ready_timeout(Duration::from_nanos(left));
            }
        }
    }

    /// Asserts every invariant of the Ledger.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        self.ledger.check();
    }

    /// Makes a second row of a live one, as it is now, known as `ticket`, which draws as `choice`; `None` when no row is
    /// free. Between ticks only.
    ///
    /// # Panics
    /// If `from` is not live.
    pub fn fork(&mut self, from: Slot, ticket: Ticket, choice: u32) -> Option<Slot> {
        let (l, ops) = (&mut self.ledger, &mut self.step.ops);
        let (requests, tokens, pages, outbox) = (&mut l.requests, &mut l.tokens, &mut l.pages, &mut l.outbox);
        let (suffix, survival, outputs) = (&mut l.suffix, &mut l.survival, &mut l.outputs);
        let (constraints, counters) = (&mut l.constraints, &mut l.counters);
        let to = systems::admit::fork(
            from,
            ticket,
            choice,
            requests,
            tokens,
            pages,
            suffix,
            survival,
            outputs,
            constraints,
            counters,
            outbox,
            ops,
        )?;
        l.totals.copy(from.index(), to.index());
        Some(to)
    }

    /// Measures what trunk passes of a few rows and an MTP chain take, for the adaptive window. Runs throw-away passes on row 0.
    ///
    /// # Panics
    /// If a request is live.
    pub fn calibrate(&mut self) {
        let Self { ledger: l, executor, step, result, .. } = self;
        assert!(l.requests.live.is_empty() && step.ops.is_empty(), "calibration runs on an idle world");
        let ring = if l.shape.mtp { l.shape.hidden_rows - 1 } else { usize::MAX };
        let most = (l.limits.window_max + 1).min(l.limits.step_rows).min(l.limits.context).min(ring);
        let reserved = l.pages.reserve(Slot(0), 0, most as u32, &mut step.ops);
        assert!(reserved, "an idle pool holds a window");
        for rows in COST_ROWS.into_iter().filter(|r| *r <= most) {
            let mut best = u64::MAX;
            for _ in 0..2 {
                step.clear();
                step.ops.push(SlotOp::Reset { state: StateSlot(0) });
                let trunk = &mut step.trunk;
                trunk.state.push(StateSlot(0));
                trunk.position.push(0);
                trunk.committed.push(1);
                trunk.row_start.extend([0, rows as u32]);
                trunk.page.extend_from_slice(l.pages.table(Slot(0)));
                trunk.page_start.extend([0, trunk.page.len() as u32]);
                trunk.rules.filters.push(Filters::GREEDY);
                trunk.rules.edit_start.push(0);
                for row in 0..rows {
                    trunk.token.push(TokenId((row * 7919 % l.shape.vocab) as u32));
                    trunk.source.push(if row == 0 { Source::Anchor } else { Source::Suffix });
                    trunk.rules.row.push(row as u32);
                    trunk.rules.filter.push(0);
                    trunk.rules.draw.push(row as u32);
                    trunk.rules.edit_start.push(0);
                    trunk.rules.mask.push(u32::MAX);
                    trunk.rules.top_n.push(NO_LOGPROBS);
                    trunk.rules.known.push(TokenId::NONE);
                }
                executor.run(step, result);
                best = best.min(result.times.trunk_ns + result.times.choose_ns);
            }
            // No time: an executor that lost the pass. What passes take is learnt from the first requests then.
            if best > 0 {
                l.cost.set_trunk(rows, best);
            }
        }
        if l.shape.mtp {
            let depth = MTP_TOKENS_DEFAULT.min(most);
            let mut best = u64::MAX;
            for _ in 0..2 {
                step.clear();
                step.ops.push(SlotOp::Reset { state: StateSlot(0) });
                let mtp = &mut step.mtp;
                mtp.state.push(StateSlot(0));
                mtp.position.push(0);
                mtp.depth.push(depth as u32);
                mtp.p_min.push(0.0);
                mtp.token.push(TokenId(0));
                mtp.token_start.extend([0, 1]);
                mtp.page.extend_from_slice(l.pages.table(Slot(0)));
                mtp.page_start.extend([0, mtp.page.len() as u32]);
                executor.run(step, result);
                best = best.min(result.times.draft_ns);
            }
            l.cost.observe_draft(depth, best);
        }
        step.clear();
        result.clear();
        l.pages.truncate(Slot(0), 0);
    }
}
