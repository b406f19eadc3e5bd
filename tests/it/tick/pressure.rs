//! The tick under pressure: long prompts, many requests, too few pages, slow readers, cancelled and drained work.

use super::*;

#[test]
fn decoding_goes_on_under_a_long_prompt_and_prompts_under_decoding() {
    let limits = Limits { prefill_chunk: 512, ..Limits::new(4, 2048) };
    let mut rig = Rig::new(&limits, ToyConfig { hidden_rows: 512, ..ToyConfig::default() });
    for ticket in 0..3 {
        rig.submit(&submission(ticket, &[1, 2, ticket as u32], 200, speculation(Strategy::MtpSuffix, 32)));
    }
    for _ in 0..5 {
        rig.tick();
    }
    let long: Vec<u32> = (0..1900).map(|i| i % 13).collect();
    rig.submit(&submission(3, &long, 5, speculation(Strategy::Off, 0)));
    let before = rig.ticks;
    while rig.heard.get(&Ticket(3)).is_none_or(|h| h.outcome.tokens.is_empty()) {
        let had: Vec<usize> = (0..3).map(|t| rig.of(t).outcome.tokens.len()).collect();
        rig.tick();
        for t in 0..3 {
            let h = rig.of(t);
            assert!(h.report.is_some() || h.outcome.tokens.len() > had[t as usize], "every row, every tick");
        }
    }
    // At least PREFILL_ROWS_MIN rows a tick, and one tick each for admission and the anchor.
    assert!(rig.ticks - before <= 1900u64.div_ceil(64) + 2, "{}", rig.ticks - before);
    rig.settle();
    rig.assert_empty();
}

#[test]
fn admission_is_in_turn() {
    let mut rig = Rig::new(&Limits::new(2, 64), ToyConfig::default());
    for ticket in 0..10 {
        rig.submit(&greedy(ticket, Strategy::ALL[ticket as usize % 4], 4, 5 + ticket as u32));
    }
    rig.settle();
    let first: Vec<u64> = (0..10).map(|t| rig.of(t).ticks[0]).collect();
    assert!(first.windows(2).all(|w| w[0] <= w[1]), "{first:?}");
}

#[test]
fn nobody_waits_longer_than_those_ahead_take() {
    // Small requests without end, in bursts, and now and then one that needs the whole pool.
    let (slots, waiting, pages) = (3, 8, 6);
    let limits = Limits { waiting, pages, ..Limits::new(slots, 16 * pages) };
    let mut rig = Rig::new(&limits, ToyConfig::default());
    let mut rng = Rng(5, 0);
    let off = speculation(Strategy::Off, 0);
    let mut arrived: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut next, mut big) = (0, Vec::new());
    let mut longest = 0;
    // One tick for the prompt, one a token, one for the row to be free again; a big one may be recomputed once.
    let bound = (waiting + slots) as u64 * 12;
    for tick in 0..3000 {
        for _ in 0..rng.pick(&[0, 0, 1, 6]) {
            let whole = rng.chance(100);
            if whole {
                big.push(next);
            }
            rig.submit(&submission(next, &vec![next as u32 % 9; if whole { 85 } else { 10 }], 9, off));
            arrived.insert(next, tick);
            next += 1;
        }
        rig.tick();
        arrived.retain(|ticket, since| {
            longest = longest.max(tick - *since);
            let heard = rig.heard.get(&Ticket(*ticket));
            heard.is_none_or(|h| h.request.is_none() && h.refused.is_none())
        });
        assert!(longest <= bound, "{longest} ticks at {tick}: {arrived:?}");
    }
    rig.settle();
    rig.assert_empty();
    let served = |t: &&u64| rig.of(**t).report.is_some();
    assert!(longest > 10 && big.iter().filter(served).count() > 10, "{longest}");
}

#[test]
fn too_few_pages_preempt_the_youngest_and_change_nothing() {
    // The pool holds one whole context; four requests would each fill it.
    let limits = Limits { pages: 6, ..Limits::new(4, 96) };
    let mut rig = Rig::new(&limits, ToyConfig::default());
    let all: Vec<Submission> =
        (0..4).map(|t| submission(t, &[1, 2, 3, t as u32], 92, speculation(Strategy::ALL[t as usize], 7))).collect();
    all.iter().for_each(|s| rig.submit(s));
    let mut ticks = 0;
    while (0..4).any(|t| rig.heard.get(&Ticket(t)).is_none_or(|h| h.report.is_none())) {
        let had = rig.heard.get(&Ticket(0)).map_or(0, |h| h.outcome.tokens.len());
        rig.tick();
        ticks += 1;
        assert!(ticks < 2000, "no livelock");
        if let Some(h) = rig.heard.get(&Ticket(0)).filter(|h| had > 0 && h.report.is_none()) {
            assert!(h.outcome.tokens.len() > had, "the oldest is never held up");
        }
    }
    for s in &all {
        rig.assert_reference(s);
    }
    assert_eq!(rig.of(0).report.as_ref().unwrap().preempted, 0);
    assert!(rig.of(3).report.as_ref().unwrap().preempted > 0);
    rig.assert_empty();
}

#[test]
fn drafts_are_trimmed_before_anyone_is_preempted() {
    // Two rows, and pages for what they commit but not for wide windows.
    let limits = Limits { pages: 4, ..Limits::new(2, 64) };
    let mut rig = Rig::new(&limits, ToyConfig { mtp_accuracy: 1000, ..ToyConfig::default() });
    let mut spec = speculation(Strategy::Mtp, 15);
    spec.mtp_tokens = 15;
    let all = [submission(0, &[1, 2, 3], 28, spec), submission(1, &[3, 2, 1], 28, spec)];
    all.iter().for_each(|s| rig.submit(s));
    rig.settle();
    for s in &all {
        rig.assert_reference(s);
        assert_eq!(rig.of(s.ticket.0).report.as_ref().unwrap().preempted, 0);
    }
}

#[test]
fn a_stalled_row_is_the_first_to_be_preempted() {
    let limits = Limits { pages: 6, ..Limits::new(2, 96) };
    let mut rig = Rig::new(&limits, ToyConfig::default());
    let old = submission(0, &[1; 40], 50, speculation(Strategy::Off, 0));
    let young = submission(1, &[2; 20], 70, speculation(Strategy::Off, 0));
    rig.submit(&old);
    rig.submit(&young);
    while rig.of_len(0) < 3 {
        rig.tick();
    }
    rig.send(Command::Pause(Ticket(0)));
    while rig.heard[&Ticket(1)].report.is_none() {
        rig.tick();
    }
    assert_eq!(rig.of(1).report.as_ref().unwrap().preempted, 0);
    let slot = rig.slot(0).unwrap();
    assert_eq!(rig.world.ledger.requests.phase[slot.index()], Phase::Preempted);
    rig.send(Command::Resume(Ticket(0)));
    rig.settle();
    rig.assert_reference(&old);
    rig.assert_reference(&young);
    assert!(rig.of(0).report.as_ref().unwrap().stall_ns > 0);
}

#[test]
fn a_slow_reader_stalls_its_row_alone() {
    let mut rig = Rig::new(&Limits::new(2, 128), ToyConfig::default());
    let all = [greedy(0, Strategy::MtpSuffix, 4, 100), greedy(1, Strategy::MtpSuffix, 4, 100)];
    all.iter().for_each(|s| rig.submit(s));
    while rig.of_len(0) == 0 {
        rig.tick();
    }
    rig.send(Command::Pause(Ticket(0)));
    rig.tick();
    let had = rig.of_len(0);
    for _ in 0..20 {
        let other = rig.of_len(1);
        rig.tick();
        assert_eq!(rig.of_len(0), had, "a paused row commits nothing");
        assert!(rig.of_len(1) > other || rig.of(1).report.is_some());
    }
    rig.send(Command::Resume(Ticket(0)));
    rig.settle();
    all.iter().for_each(|s| rig.assert_reference(s));
    assert!(rig.of(0).report.as_ref().unwrap().stall_ns > 0);
    assert_eq!(rig.of(1).report.as_ref().unwrap().stall_ns, 0);
}

#[test]
fn a_full_event_channel_stalls_rows_and_not_the_tick() {
    let mut rig = Rig::new(&Limits { events: 1, ..Limits::new(3, 128) }, ToyConfig::default());
    let all: Vec<Submission> = (0..6).map(|t| greedy(t, Strategy::Mtp, 4, 50)).collect();
    all.iter().for_each(|s| rig.submit(s));
    for _ in 0..200 {
        rig.tick_deaf();
    }
    assert!(!rig.world.moved(), "every row waits for the reader");
    assert!(rig.world.ledger.outbox.len() <= 1 + 3 * 3, "{}", rig.world.ledger.outbox.len());
    rig.listen();
    rig.settle();
    all.iter().for_each(|s| rig.assert_reference(s));
    rig.assert_empty();
}

#[test]
fn a_drain_keeps_the_bound_of_the_outbox() {
    let (slots, room) = (2, 3);
    let mut rig = Rig::new(&Limits { events: room, ..Limits::new(slots, 64) }, ToyConfig::default());
    for ticket in 0..50 {
        rig.submit(&greedy(ticket, Strategy::Mtp, 4, 30));
    }
    rig.tick();
    assert_eq!(rig.world.ledger.waiting.len(), 48);
    rig.send(Command::Drain);
    for _ in 0..100 {
        rig.tick_deaf();
        assert!(rig.world.ledger.outbox.len() <= room + 3 * slots, "{}", rig.world.ledger.outbox.len());
    }
    assert!(!rig.world.moved() && !rig.world.ended(), "it waits for the reader");
    rig.listen();
    rig.settle();
    assert!(rig.world.ended());
    for ticket in 0..2 {
        rig.assert_reference(&greedy(ticket, Strategy::Mtp, 4, 30));
    }
    for ticket in 2..50 {
        assert_eq!(rig.of(ticket).refused, Some(AdmitError::Draining));
    }
    rig.assert_empty();
}

#[test]
fn as_many_wait_as_the_limits_say() {
    let mut rig = Rig::new(&Limits::new(1, 64), ToyConfig::default());
    rig.submit(&greedy(0, Strategy::Off, 0, 50));
    rig.tick();
    for ticket in 1..=258 {
        rig.submit(&submission(ticket, &[1], 1, speculation(Strategy::Off, 0)));
    }
    rig.tick();
    rig.settle();
    let refused: Vec<u64> = (1..=258).filter(|ticket| rig.of(*ticket).refused.is_some()).collect();
    assert_eq!(refused, [257, 258]);
    assert_eq!(rig.of(258).refused, Some(AdmitError::QueueFull { waiting: 256 }));
    rig.assert_empty();
}

#[test]
fn refusals_name_their_reason() {
    let limits = Limits { waiting: 2, ..Limits::new(1, 64) };
    let mut rig = Rig::new(&limits, ToyConfig { hidden_rows: 0, ..ToyConfig::default() });
    rig.submit(&greedy(0, Strategy::Off, 0, 50));
    rig.tick();
    let off = speculation(Strategy::Off, 0);
    rig.submit(&submission(1, &[], 5, off));
    rig.submit(&submission(2, &[1; 64], 5, off));
    rig.submit(&submission(3, &[VOCAB as u32], 5, off));
    rig.submit(&submission(4, &[1], 5, speculation(Strategy::Mtp, 3)));
    for ticket in 5..8 {
        rig.submit(&submission(ticket, &[1; 63], 5, off));
    }
    rig.tick();
    let refused = |t: u64| rig.of(t).refused.clone().unwrap();
    assert_eq!(refused(1), AdmitError::EmptyPrompt);
    assert_eq!(refused(2), AdmitError::PromptTooLong { prompt: 64, context: 64 });
    assert_eq!(refused(3), AdmitError::BadToken { token: VOCAB as u32, vocab: VOCAB });
    assert!(matches!(refused(4), AdmitError::StrategyUnavailable { strategy: "mtp", .. }));
    assert_eq!(refused(7), AdmitError::QueueFull { waiting: 2 });
    rig.settle();
    assert_eq!(rig.of(5).outcome.tokens.len(), 1, "a prompt of context - 1 leaves one token");
    assert_eq!(rig.of(5).outcome.finish, Some(Finish::ContextFull));
    rig.assert_empty();
}

#[test]
fn no_tokens_wanted_none_given() {
    let mut rig = Rig::new(&Limits::new(1, 64), ToyConfig::default());
    rig.submit(&greedy(0, Strategy::MtpSuffix, 4, 0));
    rig.settle();
    assert_eq!((rig.of(0).outcome.finish, rig.of(0).outcome.tokens.len()), (Some(Finish::MaxTokens), 0));
    assert_eq!(rig.of(0).report.as_ref().unwrap().first, 0);
    rig.assert_empty();
}

#[test]
fn a_cancelled_request_is_gone_within_a_tick() {
    let limits = Limits { prefill_chunk: 8, ..Limits::new(1, 128) };
    for ticks in 0..30 {
        let mut rig = Rig::new(&limits, ToyConfig::default());
        let gone = submission(0, &[1; 60], 60, speculation(Strategy::MtpSuffix, 8));
        let next = greedy(1, Strategy::MtpSuffix, 8, 20);
        rig.submit(&gone);
        rig.submit(&next);
        for _ in 0..ticks {
            rig.tick();
        }
        let heard = rig.heard.get(&Ticket(0)).map(|h| h.outcome.clone()).unwrap_or_default();
        let computed = rig.slot(0).map_or(0, |s| rig.world.ledger.requests.kv_len[s.index()].min(60));
        rig.send(Command::Cancel(Ticket(if ticks % 7 == 3 { 1 } else { 0 })));
        rig.tick();
        if ticks % 7 == 3 {
            // Cancelled while it waits; the one that runs goes on.
            rig.settle();
            assert!(rig.of(1).cancelled.is_some() || rig.of(0).report.is_some());
            rig.assert_reference(&gone);
        } else {
            assert_eq!(rig.of(0).outcome, heard, "no more of its text is said");
            if heard.finish.is_none() {
                let report = rig.of(0).cancelled.as_ref().expect("it was cancelled");
                assert_eq!(report.completion_tokens, heard.tokens.len() as u64);
                let prompt = if heard.tokens.is_empty() { computed.into() } else { 60 };
                assert_eq!(report.prompt_tokens, prompt, "after {ticks} ticks");
            }
            assert!(rig.slot(0).is_none());
            let l = &rig.world.ledger;
            let next_holds = rig.slot(1).map_or(0, |s| l.pages.blocks(s));
            assert_eq!(l.pages.free_len() + next_holds, l.pages.len());
            // A late cancel of the old ticket does not reach the row's next owner.
            rig.tick();
            rig.send(Command::Cancel(Ticket(0)));
            rig.settle();
            rig.assert_reference(&next);
        }
        rig.assert_empty();
    }
}

#[test]
fn pages_of_a_cancelled_row_go_before_a_live_one_loses_its_own() {
    let off = speculation(Strategy::Off, 0);
    let mut rig = Rig::new(&Limits { pages: 6, ..Limits::new(3, 96) }, ToyConfig::default());
    let all = [submission(0, &[1; 30], 10, off), submission(1, &[2; 20], 20, off), submission(2, &[3; 20], 20, off)];
    all.iter().for_each(|s| rig.submit(s));
    rig.tick();
    let oldest = rig.slot(0).expect("it runs").index();
    while rig.world.ledger.requests.kv_len[oldest] < 32 {
        rig.tick();
    }
    // The next anchor of the oldest row needs a page, and the youngest goes in the same tick.
    assert_eq!(rig.world.ledger.pages.free_len(), 0);
    rig.send(Command::Cancel(Ticket(2)));
    rig.settle();
    for s in &all[..2] {
        rig.assert_reference(s);
    }
    assert_eq!(preempted(&rig), 0);
    rig.assert_empty();
}

#[test]
fn wide_windows_leave_prompts_their_rows() {
    let limits = Limits { step_rows: 80, ..Limits::new(3, 2048) };
    let mut rig = Rig::new(&limits, ToyConfig { hidden_rows: 512, ..ToyConfig::default() });
    for ticket in 0..2 {
        rig.submit(&submission(ticket, &[1, 2], 1500, speculation(Strategy::MtpSuffix, 32)));
    }
    while rig.of_len(0) < 40 {
        rig.tick();
    }
    rig.submit(&submission(2, &[5; 1000], 5, speculation(Strategy::Off, 0)));
    let mut before = 0;
    while before < 900 {
        rig.tick();
        let slot = rig.slot(2).unwrap().index();
        let now = rig.world.ledger.requests.kv_len[slot];
        assert!(now >= before + 64, "{now} after {before}: windows of 64 drafts want the same rows");
        before = now;
    }
    rig.send(Command::Stop);
    rig.tick();
    assert!(rig.world.ended());
}

#[test]
fn a_stalled_row_gives_way_before_a_young_one_and_holds_nobody_up() {
    let limits = Limits { pages: 10, ..Limits::new(4, 128) };
    let mut rig = Rig::new(&limits, ToyConfig::default());
    let off = speculation(Strategy::Off, 0);
    let stalled = submission(0, &[1; 40], 50, off);
    let older = submission(1, &[2; 30], 48, off);
    let young = submission(2, &[3], 60, off);
    for s in [&stalled, &older, &young] {
        rig.submit(s);
    }
    while rig.of_len(0) == 0 {
        rig.tick();
    }
    rig.send(Command::Pause(Ticket(0)));
    // Until the row in the middle asks for its fifth page.
    for _ in 0..40 {
        rig.tick();
    }
    let slot = rig.slot(0).unwrap().index();
    assert_eq!(rig.world.ledger.counters.report[slot].preempted, 1);
    assert_eq!(rig.world.ledger.requests.phase[slot], Phase::Preempted, "the paused row, though it is the oldest");
    // It waits for its reader; somebody new does not wait for it.
    let new = submission(3, &[4; 10], 3, off);
    rig.submit(&new);
    for _ in 0..8 {
        rig.tick();
    }
    assert!(rig.of(3).report.is_some());
    rig.send(Command::Resume(Ticket(0)));
    rig.settle();
    for s in [&stalled, &older, &young, &new] {
        rig.assert_reference(s);
    }
    assert_eq!(rig.of(2).report.as_ref().unwrap().preempted, 0);
    rig.assert_empty();
}
