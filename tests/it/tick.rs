//! The tick over the toy model: what is committed, counted, scheduled and freed.

use std::collections::BTreeMap;

use engine::api::{
    AdmitError, Command, DraftCounts, Finish, Sampling, Speculation, Stop, Strategy, Submission, WindowPolicy,
};
use engine::cost::Cost;
use engine::ids::{Ticket, TokenId};
use engine::limits::Limits;
use engine::sample;
use engine::step::LogitEdit;
use engine::tables::requests::Phase;
use engine_tests::toy::{END, POISON, Rig, ToyConfig, VOCAB, reference, speculation, submission};

/// A seeded generator for scenarios.
struct Rng(u64, u32);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.1 += 1;
        sample::random_bits(self.0, 0, self.1) % n
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

fn prompt(rng: &mut Rng, len: u64) -> Vec<u32> {
    // A few tokens only, so that text repeats.
    (0..len).map(|_| rng.below(12) as u32).collect()
}

/// Any settings that a client could ask for.
fn any_submission(rng: &mut Rng, ticket: u64, prompt_max: u64, tokens_max: u64) -> Submission {
    let mut spec = speculation(rng.pick(&Strategy::ALL), rng.pick(&[1, 2, 7, 15]));
    spec.mtp_tokens = rng.below(6) as u8;
    spec.suffix_min = rng.pick(&[1, 2, 3, 9]);
    spec.suffix_max = spec.suffix_min + rng.below(20) as u8;
    if rng.chance(400) {
        spec.policy = WindowPolicy::Adaptive;
    }
    let len = 1 + rng.below(prompt_max);
    let mut s = submission(ticket, &prompt(rng, len), 1 + rng.below(tokens_max) as u32, spec);
    if rng.chance(400) {
        s.sampling = Sampling {
            temperature: 0.7,
            top_k: rng.pick(&[0, 5, 20]),
            top_p: rng.pick(&[1.0, 0.9]),
            min_p: rng.pick(&[0.0, 0.05]),
            seed: rng.below(1000),
            choice: rng.below(3) as u32,
            ..Sampling::greedy()
        };
    }
    if rng.chance(250) {
        s.sampling.repeat_penalty = 1.3;
        s.sampling.repeat_last_n = rng.pick(&[1, 8, u32::MAX]);
        s.sampling.presence_penalty = 0.5;
        s.sampling.frequency_penalty = 0.25;
        s.sampling.logit_bias = vec![LogitEdit { token: TokenId(3), repeat: 1.0, add: 2.0 }];
    }
    if rng.chance(300) {
        s.stop.strings = vec![b"ab".to_vec(), b"c0".to_vec(), "\u{20ac}x".into()];
        s.stop.include = rng.chance(500);
    }
    if rng.chance(200) {
        s.stop.tokens = vec![TokenId(rng.below(12) as u32)];
    }
    s.stop.min_tokens = if rng.chance(200) { rng.below(10) as u32 } else { 0 };
    s.stop.ignore_eos = rng.chance(200);
    s.logprobs = rng.pick(&[None, None, Some(0), Some(3)]);
    s.show_special = rng.chance(300);
    s
}

/// Random ticks of admission, acceptance, rejection, cancellation, pauses, preemption and forks, with every invariant
/// checked after each; whatever finishes equals plain decoding, and at the end nobody holds anything.
fn soak(seed: u64, ticks: u64, limits: &Limits, config: ToyConfig) -> Rig {
    let mut rng = Rng(seed, 0);
    let mut rig = Rig::new(limits, config);
    let mut open: BTreeMap<u64, Submission> = BTreeMap::new();
    let mut cancelled = Vec::new();
    let mut next = 0;
    for _ in 0..ticks {
        if open.len() < limits.slots * 2 && rng.chance(300) {
            let tokens = 1 + limits.context as u64 / 2;
            let mut s = any_submission(&mut rng, next, limits.context as u64 / 2, tokens);
            if rig.config.hidden_rows == 0 && s.speculation.strategy.uses_mtp() {
                s.speculation.strategy = Strategy::NgramSuffix;
            }
            rig.submit(&s);
            open.insert(next, s);
            next += 1;
        }
        let some = open.keys().copied().nth(rng.below(open.len().max(1) as u64) as usize);
        if let Some(ticket) = some {
            if rng.chance(15) {
                rig.send(Command::Cancel(Ticket(ticket)));
                rig.send(Command::Cancel(Ticket(ticket)));
                open.remove(&ticket);
                cancelled.push(ticket);
            } else if rng.chance(20) {
                rig.send(Command::Pause(Ticket(ticket)));
            } else if rng.chance(100) {
                rig.send(Command::Resume(Ticket(ticket)));
            } else if rng.chance(20)
                && let Some(slot) = rig.slot(ticket)
            {
                let choice = 10 + rng.below(3) as u32;
                // Greedy rows only: a fork draws as another choice from here on.
                if open[&ticket].sampling.temperature == 0.0 && rig.world.fork(slot, Ticket(next), choice).is_some() {
                    rig.world.check();
                    let mut s = open[&ticket].clone();
                    s.ticket = Ticket(next);
                    // What the parent was told before the fork is not told again.
                    let told = rig.heard.get(&Ticket(ticket)).map(|h| h.outcome.clone()).unwrap_or_default();
                    rig.heard.entry(Ticket(next)).or_default().outcome = told;
                    open.insert(next, s);
                    next += 1;
                }
            }
        }
        rig.tick();
        for ticket in open.keys().copied().collect::<Vec<_>>() {
            if rig.heard.get(&Ticket(ticket)).is_some_and(|h| h.report.is_some()) {
                rig.assert_reference(&open.remove(&ticket).unwrap());
            }
        }
    }
    for ticket in open.keys() {
        rig.send(Command::Resume(Ticket(*ticket)));
    }
    rig.settle();
    let r = &rig.world.ledger.requests;
    assert!(r.live.is_empty(), "{:?} {:?} {:?}", r.live, r.phase, r.paused);
    for s in open.values() {
        rig.assert_reference(s);
    }
    for ticket in cancelled {
        let heard = rig.heard.get(&Ticket(ticket));
        assert!(heard.is_none_or(|h| h.report.is_none()), "{ticket} was cancelled and finished");
    }
    rig.assert_empty();
    rig
}

fn totals(rig: &Rig) -> DraftCounts {
    let mut sum = DraftCounts::default();
    rig.world.ledger.metrics.finished.iter().for_each(|t| sum.add(&t.total));
    sum
}

#[test]
fn a_hundred_thousand_ticks_keep_every_invariant() {
    // Plenty of pages; too few pages; no MTP block; a tight ring and a tight pass.
    let roomy = Limits::new(4, 96);
    let tight = Limits { pages: 9, prefill_chunk: 7, ..Limits::new(4, 96) };
    let narrow = Limits { step_rows: 9, prefill_chunk: 5, window_max: 6, ..Limits::new(4, 64) };
    let toy = |seed, hidden_rows| ToyConfig { seed, hidden_rows, end_rate: 15, ..ToyConfig::default() };
    let a = soak(1, 25_000, &roomy, toy(11, 64));
    let b = soak(2, 40_000, &tight, toy(12, 40));
    let c = soak(3, 15_000, &tight, toy(13, 0));
    let d = soak(4, 20_000, &narrow, toy(14, 7));
    assert!(b.world.ledger.metrics.preempted > 100, "{:?}", b.world.ledger.metrics);
    for rig in [&a, &b, &c, &d] {
        let sum = totals(rig);
        assert!(sum.accepted > 1000 && sum.rejected > 500, "{sum:?}");
    }
    assert!(totals(&a).trimmed > 0, "drafts past the vocabulary are cut");
    let cancelled = a.world.ledger.metrics.cancelled;
    assert!(cancelled.queued > 0 && cancelled.prefill + cancelled.decode > 0 && cancelled.stalled > 0, "{cancelled:?}");
}
