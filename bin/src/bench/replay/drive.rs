//! One round: every session of a workload under one way to decode, on the real Ledger and tick, and what was seen of it.
//!
//! Sessions are closed loops: one request at a time, the next when it has ended, `concurrency` sessions at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender, bounded};
use engine::api::{Command, DraftCounts, Event, Finish, Report, Sampling, Speculation, Stop, Submission};
use engine::clock::Clock;
use engine::cost::Cost;
use engine::ids::{Slot, Ticket, TokenId};
use engine::limits::{Limits, LimitsError, WINDOW_MAX};
use engine::pieces::Pieces;
use engine::step::{Executor, Source};
use engine::tick::{System, TICK};
use engine::world::{Ledger, World};

use super::script::{Play, Script};
use crate::bench::counters::{Counters, Position};
use crate::bench::result::{Bins, Lengths};

/// A world, and the channels to it.
pub struct Driver {
    world: World,
    commands: Sender<Command>,
    events: Receiver<Event>,
    /// Tickets are never used twice.
    ticket: u64,
}

/// Why a round has no figures.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DriveError {
    /// A request was not admitted.
    #[error("{session}, turn {turn}: refused by the engine: {reason}")]
    Refused {
        /// Whose.
        session: String,
        /// Which of its turns.
        turn: usize,
        /// The engine's words.
        reason: String,
    },
    /// A request ended otherwise than its script.
    #[error("{session}, turn {turn}: ended by {finish} after {tokens} of {expected} tokens")]
    Ended {
        /// Whose.
        session: String,
        /// Which of its turns.
        turn: usize,
        /// How.
        finish: String,
        /// Tokens committed.
        tokens: usize,
        /// Tokens of its script.
        expected: usize,
    },
    /// Counters contradict each other.
    #[error("{session}, turn {turn}: counters contradict each other: identity {what}")]
    Counters {
        /// Whose.
        session: String,
        /// Which of its turns.
        turn: usize,
        /// Which identity.
        what: String,
    },
    /// Nothing moves any more.
    #[error("the engine stands still with {left} sessions to go")]
    Still {
        /// Sessions that have not ended.
        left: usize,
    },
}

/// What came of a round.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Round {
    /// Per script: what was committed.
    pub committed: Vec<Vec<TokenId>>,
    /// Sum over requests.
    pub counters: Counters,
    /// Per script: times and prompt tokens.
    pub reports: Vec<Report>,
    /// What was seen between the systems.
    pub seen: Seen,
    /// Time of the round.
    pub elapsed_ns: u64,
}

/// What reports do not hold: figures of single windows and passes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Seen {
    /// By proposer.
    pub lengths: BTreeMap<&'static str, Lengths>,
    /// Tokens committed at once.
    pub emissions: Bins,
    /// Between emissions, nanoseconds.
    pub gaps_ns: Vec<f64>,
    /// Of each look-up, nanoseconds.
    pub lookups_ns: Vec<f64>,
    /// Rows of passes without prompt rows -> nanoseconds of each.
    pub passes_ns: BTreeMap<usize, Vec<f64>>,
}

/// A row as it was a tick ago.
#[derive(Clone, Copy, Default)]
struct Before {
    ticket: Option<Ticket>,
    mtp: DraftCounts,
    suffix: DraftCounts,
    lookups: u64,
    lookup_ns: u64,
    tokens: u64,
    emitted_ns: u64,
}

impl Driver {
    /// An engine around `executor`. With `cost` widths follow that table, else one that is measured now and kept up.
    ///
    /// # Errors
    /// Limits that contradict each other.
    pub fn new(
        executor: Box<dyn Executor>,
        limits: &Limits,
        pieces: Arc<Pieces>,
        cost: Option<Cost>,
        clock: Box<dyn Clock>,
    ) -> Result<Self, LimitsError> {
        let mut ledger = Ledger::new(limits.clone(), executor.shape().clone(), pieces)?;
        let measured = cost.is_none();
        if let Some(cost) = cost {
            ledger.cost = cost;
        }
        let (commands, inbox) = bounded(limits.slots + 1);
        let (sender, events) = bounded(limits.events);
        let mut world = World::new(ledger, executor, clock, inbox, sender);
        if measured {
            world.calibrate();
        }
        Ok(Self { world, commands, events, ticket: 0 })
    }

    /// What passes cost as far as is known.
    pub fn cost(&self) -> &Cost {
        &self.world.ledger.cost
    }

    /// Measures again what passes cost.
    pub fn calibrate(&mut self) {
        self.world.calibrate();
    }

    /// Bytes of the suffix index.
    pub fn suffix_bytes(&self) -> usize {
        let limits = &self.world.ledger.limits;
        engine::tables::suffix::Suffix::bytes_for(limits.slots, limits.context)
    }

    /// Runs every session of `plays`. The executor knows a script by its index, which is the seed of its request.
    ///
    /// # Errors
    /// The first request that did not go as its script says.
    pub fn round(&mut self, scripts: &[Script], plays: &[Play], speculation: Speculation) -> Result<Round, DriveError> {
        let slots = self.world.ledger.limits.slots;
        let mut round = Round {
            committed: vec![Vec::new(); scripts.len()],
            reports: vec![Report::default(); scripts.len()],
            ..Round::default()
        };
        let started = self.world.clock().now_ns();
        let mut waiting = plays.iter();
        let mut running: HashMap<Ticket, (&Play, usize)> = HashMap::new();
        let mut before = vec![Before::default(); slots];
        for play in waiting.by_ref().take(slots) {
            let ticket = self.submit(&scripts[play.scripts.start], play.scripts.start, speculation);
            running.insert(ticket, (play, play.scripts.start));
        }
        while !running.is_empty() {
            self.tick(&mut before, &mut round.seen);
            let mut heard = false;
            while let Ok(event) = self.events.try_recv() {
                heard = true;
                let Some(&(play, index)) = running.get(&event.ticket()) else { continue };
                let script = &scripts[index];
                let (session, turn) = (play.name.clone(), script.turn);
                match event {
                    Event::Admitted { .. } | Event::Prompt { .. } | Event::Pages { .. } => {}
                    Event::Delta { delta, .. } => round.committed[index].extend(&delta.tokens),
                    Event::Cancelled { .. } => unreachable!("nobody cancels"),
                    Event::Refused { error, .. } => {
                        return Err(DriveError::Refused { session, turn, reason: error.to_string() });
                    }
                    Event::Finished { ticket, finish, report } => {
                        let tokens = round.committed[index].len();
                        let expected = script.target.len();
                        if tokens != expected || matches!(finish, Finish::Fault(_) | Finish::StopString(_)) {
                            let finish = format!("{finish:?}");
                            return Err(DriveError::Ended { session, turn, finish, tokens, expected });
                        }
                        let counters = Counters::of(&report, speculation.strategy);
                        counters.check().map_err(|what| DriveError::Counters { session, turn, what })?;
                        round.counters.add(&counters);
                        round.reports[index] = *report;
                        running.remove(&ticket);
                        let next = if index + 1 < play.scripts.end {
                            Some((play, index + 1))
                        } else {
                            waiting.next().map(|play| (play, play.scripts.start))
                        };
                        if let Some((play, index)) = next {
                            let ticket = self.submit(&scripts[index], index, speculation);
                            running.insert(ticket, (play, index));
                        }
                    }
                }
            }
            if !heard && !self.world.moved() {
                return Err(DriveError::Still { left: running.len() + waiting.count() });
            }
        }
        self.world.check();
        round.elapsed_ns = self.world.clock().now_ns() - started;
        Ok(round)
    }

    fn submit(&mut self, script: &Script, seed: usize, speculation: Speculation) -> Ticket {
        self.ticket += 1;
        let ticket = Ticket(self.ticket);
        // An answer that ends by itself does not tell its length: what is drafted behind its end is discarded.
        let max_tokens = (script.target.len() + if script.ends { WINDOW_MAX } else { 0 }) as u32;
        let submission = Submission {
            sampling: Sampling { seed: seed as u64, ..Sampling::greedy() },
            stop: Stop { ignore_eos: script.ignores_end, ..Stop::default() },
            cache: None,
            ..Submission::greedy(ticket, script.prompt.clone(), max_tokens, speculation)
        };
        self.commands
            .send(Command::Submit(Box::new(submission)))
            .expect("the world is here, and takes one of every slot");
        ticket
    }

    fn tick(&mut self, before: &mut [Before], seen: &mut Seen) {
        let world = &mut self.world;
        for (system, _) in TICK {
            world.run(system);
            match system {
                System::Verify => pass(world, seen),
                System::Commit => {
                    let now = world.clock().now_ns();
                    for row in 0..world.ledger.windows.len() {
                        window(&world.ledger, world.ledger.windows.slot[row], now, before, seen);
                    }
                }
                _ => {}
            }
        }
    }
}

/// A pass that only windows took part in, behind verify.
fn pass(world: &World, seen: &mut Seen) {
    let trunk = &world.step.trunk;
    if trunk.source.first().is_some_and(|source| *source != Source::Prompt) {
        let times = &world.result.times;
        let ns = (times.trunk_ns + times.choose_ns) as f64;
        seen.passes_ns.entry(trunk.token.len()).or_default().push(ns);
    }
}

/// A window that was just committed, by what its row's counters gained.
fn window(ledger: &Ledger, slot: Slot, now: u64, before: &mut [Before], seen: &mut Seen) {
    let s = slot.index();
    let ticket = Some(ledger.requests.ticket[s]);
    if before[s].ticket != ticket {
        before[s] = Before { ticket, ..Before::default() };
    }
    let (report, was) = (&ledger.counters.report[s], &before[s]);
    for (name, now, was) in [("mtp", &report.mtp, &was.mtp), ("suffix", &report.suffix, &was.suffix)] {
        let gained = |of: fn(&DraftCounts) -> u64| (of(now) - of(was)) as usize;
        let (proposed, drafted) = (gained(|c| c.proposed), gained(|c| c.drafted));
        if proposed == 0 {
            continue;
        }
        let accepted = gained(|c| c.accepted);
        let tested = accepted + gained(|c| c.rejected);
        let lengths = seen.lengths.entry(name).or_default();
        lengths.candidate_hist.add(proposed);
        lengths.tested_hist.add(tested);
        lengths.accepted_hist.add(accepted);
        if lengths.per_position.len() < drafted {
            lengths.per_position.resize(drafted, Position { tested: Some(0), ..Position::default() });
        }
        for (at, position) in lengths.per_position[..drafted].iter_mut().enumerate() {
            position.drafted += 1;
            position.tested = position.tested.map(|n| n + u64::from(at < tested));
            position.accepted += u64::from(at < accepted);
        }
    }
    let looked = &report.suffix_lookups;
    if looked.lookups > was.lookups {
        seen.lookups_ns.push((looked.lookup_ns - was.lookup_ns) as f64);
    }
    let tokens = report.completion_tokens - was.tokens;
    seen.emissions.add(tokens as usize);
    if was.emitted_ns > 0 {
        seen.gaps_ns.push((now - was.emitted_ns) as f64);
    }
    before[s] = Before {
        ticket,
        mtp: report.mtp,
        suffix: report.suffix,
        lookups: looked.lookups,
        lookup_ns: looked.lookup_ns,
        tokens: report.completion_tokens,
        emitted_ns: now,
    };
}
