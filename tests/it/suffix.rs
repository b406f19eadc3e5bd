//! The suffix proposer in the tick: what it may know, when it is asked, what a strategy does with it.

use engine::api::{Report, Strategy, Submission};
use engine::ids::TokenId;
use engine::limits::Limits;
use engine::tables::suffix::Suffix;
use engine_tests::toy::{Rig, ToyConfig, reference, speculation, submission};

fn run(config: &ToyConfig, limits: &Limits, s: &Submission) -> Report {
    let mut rig = Rig::new(limits, config.clone());
    rig.submit(s);
    rig.settle();
    rig.assert_reference(s);
    rig.assert_empty();
    rig.of(s.ticket.0).report.clone().expect("finished")
}

/// The prompt holds the whole answer: an editing task.
#[test]
fn a_text_that_is_copied_is_accepted_whole() {
    let config = ToyConfig { order: 5, ..ToyConfig::default() };
    let prompt = [1, 2, 3, 4, 5, 6, 7, 8];
    let answer = reference(&config, 512, &submission(0, &prompt, 100, speculation(Strategy::Off, 0))).tokens;
    let mut copied: Vec<u32> = prompt.to_vec();
    copied.extend(answer.iter().map(|t| t.0));
    copied.extend(prompt);
    let r = run(&config, &Limits::new(1, 512), &submission(0, &copied, 100, speculation(Strategy::NgramSuffix, 15)));
    assert_eq!((r.suffix.rejected, r.suffix.unreached), (0, 0), "{r:?}");
    assert!(r.steps <= 8, "{r:?}");
    assert_eq!(r.suffix_lookups.hits, r.windows);
    assert!(r.suffix_lookups.match_len_sum > 8 * r.suffix_lookups.hits, "{r:?}");
}

#[test]
fn windows_do_not_show_in_the_index() {
    // The same history, committed in different pieces, leaves the same index: what is proposed next is the same.
    let config = ToyConfig { order: 1, ..ToyConfig::default() };
    let mut matches = Vec::new();
    for width in [0, 1, 3, 15] {
        let mut rig = Rig::new(&Limits::new(1, 256), config.clone());
        rig.submit(&submission(0, &[1, 2, 3], 250, speculation(Strategy::MtpSuffix, width)));
        let mut seen = vec![None; 256];
        while rig.slot(0).is_some() || rig.ticks == 0 {
            rig.tick();
            if let Some(slot) = rig.slot(0) {
                let suffix = &rig.world.ledger.suffix;
                seen[suffix.indexed_len(slot) as usize] = Some(suffix.matched(slot));
            }
        }
        matches.push(seen);
    }
    let plain = &matches[0];
    assert!(plain.iter().flatten().filter(|m| m.len > 0).count() > 100);
    for seen in &matches[1..] {
        for (a, b) in seen.iter().zip(plain) {
            assert!(a.is_none() || a == b, "{a:?} after windows, {b:?} without");
        }
    }
}

#[test]
fn rows_with_the_same_seeds_keep_their_own_histories() {
    let config = ToyConfig { order: 3, ..ToyConfig::default() };
    let limits = Limits::new(2, 256);
    let tickets = |slots| {
        let mut rig = Rig::new(&Limits { slots, ..limits.clone() }, config.clone());
        let all: Vec<Submission> = [9, 11]
            .into_iter()
            .zip(0..)
            .map(|(odd, t)| submission(t, &[1, 2, 3, odd, 1, 2, 3], 200, speculation(Strategy::NgramSuffix, 7)))
            .collect();
        all.iter().for_each(|s| rig.submit(s));
        rig.settle();
        all.iter().for_each(|s| rig.assert_reference(s));
        [0, 1].map(|t| rig.of(t).report.as_ref().expect("finished").suffix)
    };
    assert_eq!(tickets(1), tickets(2), "alone or side by side, the same drafts");
}

#[test]
fn steps_are_asked_skipped_or_not_counted() {
    let config = ToyConfig { mtp_accuracy: 1000, ..ToyConfig::default() };
    // The prefix fills the window: no room for a tail.
    let full = run(&config, &Limits::new(1, 128), &submission(0, &[1, 2, 3], 50, speculation(Strategy::MtpSuffix, 3)));
    assert_eq!((full.suffix_lookups.lookups, full.suffix_lookups.skipped), (0, full.steps));
    // A row that does not ask has no figures at all.
    let mtp = run(&config, &Limits::new(1, 128), &submission(0, &[1, 2, 3], 50, speculation(Strategy::Mtp, 9)));
    assert_eq!(mtp.suffix_lookups, engine::api::SuffixCounts::default());
    let both = run(&config, &Limits::new(1, 128), &submission(0, &[1, 2, 3], 50, speculation(Strategy::MtpSuffix, 9)));
    let l = both.suffix_lookups;
    assert_eq!(l.lookups + l.skipped, both.steps);
}

#[test]
fn a_tail_continues_the_prefix_and_not_the_history() {
    // One token decides the next, so the text soon has a period; the chain is always right, and the tail goes on
    // where the chain ends.
    let config = ToyConfig { order: 1, mtp_script: vec![3; 500], ..ToyConfig::default() };
    let s = submission(0, &[1, 2, 3], 300, speculation(Strategy::MtpSuffix, 12));
    let text = reference(&config, 512, &s).tokens;
    assert!(text[text.len() - 4..].windows(2).all(|w| w[0] != w[1]), "a period of one would prove nothing");
    let r = run(&config, &Limits::new(1, 512), &s);
    assert_eq!(r.mtp.rejected, 0);
    assert!(r.tail_accepted > 100 && r.suffix.rejected <= 2, "{r:?}");
}

/// Adversarial text: every seed alike, long chains, period one. Bounded by the candidates, or this would take minutes.
#[test]
fn no_text_makes_a_search_long() {
    let n = 60_000;
    let texts: [Box<dyn Fn(u32) -> u32>; 3] =
        [Box::new(|_| 7), Box::new(|i| if i % 9 == 8 { 1000 + i } else { i % 9 }), Box::new(|i| i * 7919 % 3)];
    for text in texts {
        let history: Vec<TokenId> = (0..n).map(|i| TokenId(text(i))).collect();
        let mut index = Suffix::new(1, n as usize);
        index.reset(engine::ids::Slot(0), 8, 64);
        for end in (0..n as usize).step_by(1000) {
            index.catch_up(engine::ids::Slot(0), &history[..end]);
            index.query(engine::ids::Slot(0), &history[..end], &[TokenId(1), TokenId(2)]);
        }
        assert_eq!(index.indexed_len(engine::ids::Slot(0)), n - 1000);
    }
}
