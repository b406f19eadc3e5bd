//! Windows at their edges: an end token inside, the last place of a context, a tail that is wrong in the middle; and rows
//! beside others, in too few pages, behind a target that changes its mind.

use engine::api::{Command, Finish, Report, Sampling, Strategy, Submission};
use engine::ids::{Ticket, TokenId};
use engine::limits::Limits;
use engine_tests::toy::{END, Rig, ToyConfig, VOCAB, reference, speculation, submission};

fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|t| t.0).collect()
}

/// The history goes on behind an end token, and the target agrees up to it: what stands behind is neither said nor
/// counted nor kept.
#[test]
fn nothing_behind_an_end_token_is_left() {
    let start = [1, 2, 3, 4, 5, 6, 7, 8];
    let plain = ToyConfig { order: 5, hidden_rows: 0, plain: true, ..ToyConfig::default() };
    let off = |prompt: &[u32]| submission(0, prompt, 6, speculation(Strategy::Off, 0));
    let answer = ids(&reference(&plain, 256, &off(&start)).tokens);
    let behind = [30, 31, 32, 33, 34, 30, 31, 32];
    let prompt = [&start[..], &answer, &[END.0], &behind, &start].concat();
    let config = ToyConfig { end_at: prompt.len() + answer.len(), ..plain };
    let mut rig = Rig::new(&Limits { prefix_cache: true, ..Limits::new(1, 256) }, config);
    for (ticket, ignored) in [(0, false), (1, true)] {
        // With end tokens ignored elsewhere it is a stop token of the request's own.
        let mut s = submission(ticket, &prompt, 40, speculation(Strategy::NgramSuffix, 15));
        s.stop.ignore_eos = ignored;
        s.stop.tokens = if ignored { vec![TokenId(answer[4])] } else { Vec::new() };
        rig.submit(&s);
        rig.settle();
        rig.assert_reference(&s);
        let (outcome, report) = (&rig.of(ticket).outcome, rig.of(ticket).report.as_ref().unwrap());
        let said = if ignored { answer[..5].to_vec() } else { [&answer[..], &[END.0]].concat() };
        assert_eq!(
            (ids(&outcome.tokens), outcome.finish),
            (said.clone(), Some(Finish::EndToken(TokenId(said[said.len() - 1]))))
        );
        assert!(report.suffix.accepted > 0, "{report:?}");
        assert_eq!((report.suffix.rejected, report.suffix.discarded), (0, 0), "no draft behind the end: {report:?}");
    }
    // What was drafted is no prefix of anybody.
    let mut further = [&prompt[..], &answer, &[END.0]].concat();
    let known = further.len() as u64;
    further.extend(behind);
    let s = submission(2, &further, 1, speculation(Strategy::Off, 0));
    rig.submit(&s);
    rig.settle();
    let report = rig.of(2).report.as_ref().unwrap();
    assert!(report.cached_tokens > prompt.len() as u64 && report.cached_tokens <= known, "{report:?}");
    rig.assert_empty();
}

/// A context of 64 tokens, a prompt of 58 that repeats itself, a window of 8: the last place is reached, and the pool
/// holds no page more.
#[test]
fn a_tail_ends_with_the_context() {
    let config = ToyConfig { order: 0, hidden_rows: 0, ..ToyConfig::default() };
    let token = reference(&config, 64, &submission(0, &[1], 1, speculation(Strategy::Off, 0))).tokens[0].0;
    let limits = Limits { pages: 4, ..Limits::new(1, 64) };
    for prompt in 40..64 {
        let mut rig = Rig::new(&limits, config.clone());
        let s = submission(0, &vec![token; prompt], 1000, speculation(Strategy::NgramSuffix, 8));
        rig.submit(&s);
        rig.settle();
        rig.assert_reference(&s);
        let (outcome, report) = (&rig.of(0).outcome, rig.of(0).report.as_ref().unwrap());
        assert_eq!((outcome.finish, outcome.tokens.len()), (Some(Finish::ContextFull), 64 - prompt));
        assert_eq!((report.total.discarded, report.total.rejected), (0, 0), "{report:?}");
        assert_eq!(report.bonus, report.steps, "the last row of a window can always be committed");
        if prompt == 58 {
            assert_eq!((report.steps, report.suffix.drafted, report.suffix.accepted), (1, 4, 4), "{report:?}");
        }
        rig.assert_empty();
    }
}

/// Two drafts of the chain and five of the tail, of which the target takes the first.
#[test]
fn a_tail_that_is_wrong_in_the_middle_is_counted_as_written() {
    let config = ToyConfig { order: 4, mtp_script: vec![2], ..ToyConfig::default() };
    let start = [1, 2, 3, 4];
    let answer = ids(&reference(&config, 256, &submission(0, &start, 40, speculation(Strategy::Off, 0))).tokens);
    // What follows the third token of the answer, but for its second.
    let wrong = (answer[4] + 1) % VOCAB as u32;
    let prompt = [&start[..], &answer[..4], &[wrong, 9, 9, 9, 9, 9, 9], &start].concat();
    let mut spec = speculation(Strategy::MtpSuffix, 7);
    spec.mtp_tokens = 2;
    let s = submission(0, &prompt, 40, spec);
    let mut rig = Rig::new(&Limits::new(1, 256), config);
    rig.submit(&s);
    let report = loop {
        rig.tick();
        let slot = rig.slot(0).unwrap().index();
        let report = rig.world.ledger.counters.report[slot].clone();
        if report.windows > 0 {
            break report;
        }
    };
    let (m, t) = (report.mtp, report.suffix);
    assert_eq!((m.drafted, m.accepted, m.rejected, m.unreached), (2, 2, 0, 0), "{report:?}");
    assert_eq!((t.drafted, t.accepted, t.rejected, t.unreached, t.discarded), (5, 1, 1, 3, 0), "{report:?}");
    assert_eq!(
        (report.tail_windows, report.tail_tested, report.tail_drafted_tested, report.tail_accepted),
        (1, 1, 5, 1)
    );
    assert_eq!((report.steps, report.plain, report.bonus, report.completion_tokens), (1, 0, 1, 5), "{report:?}");
    rig.settle();
    rig.assert_reference(&s);
}

/// A prompt of many chunks beside others that decode, admitted and freed in another order: what is counted of it is
/// what is counted of it alone.
#[test]
fn what_is_counted_of_a_request_does_not_depend_on_others() {
    let figures = |r: &Report| {
        let r = r.clone();
        (r.total, r.mtp, r.suffix, r.steps, r.windows, r.width_hist, r.accepted_hist, r.per_position)
    };
    let long: Vec<u32> = (0..150).map(|i| [1, 2, 3, 1, 2, 7, 3][i % 7]).collect();
    let ask = |ticket: u64| {
        let prompt = if ticket.is_multiple_of(2) { &long[..] } else { &long[..3 + ticket as usize] };
        let mut s = submission(ticket, prompt, 60, speculation(Strategy::MtpSuffix, 7));
        s.sampling = Sampling { temperature: 0.8, top_k: 8, seed: ticket, ..Sampling::greedy() };
        s
    };
    let config = ToyConfig { order: 1, ..ToyConfig::default() };
    let run = |tickets: &[u64]| {
        let mut rig = Rig::new(&Limits { prefill_chunk: 17, ..Limits::new(3, 256) }, config.clone());
        tickets.iter().for_each(|ticket| rig.submit(&ask(*ticket)));
        rig.settle();
        rig.assert_empty();
        tickets.iter().map(|ticket| figures(rig.of(*ticket).report.as_ref().unwrap())).collect::<Vec<_>>()
    };
    let together = run(&[0, 1, 2, 3, 4, 5]);
    for ticket in 0..6 {
        assert_eq!(run(&[ticket])[0], together[ticket as usize], "{ticket}");
    }
    assert!(together.iter().all(|f| f.0.accepted > 0) && together.iter().any(|f| f.0.rejected > 0));
}

#[test]
fn what_only_the_cache_holds_goes_before_a_row_does() {
    let config = ToyConfig { hidden_rows: 0, plain: true, ..ToyConfig::default() };
    let mut rig = Rig::new(&Limits { pages: 12, prefix_cache: true, ..Limits::new(2, 96) }, config);
    let off = speculation(Strategy::Off, 0);
    let first = submission(0, &[5; 90], 6, off);
    rig.submit(&first);
    rig.settle();
    assert!(rig.world.ledger.pages.held_len() >= 5, "the cache holds what was computed");
    // Both together need every page.
    let both = [submission(1, &[1; 40], 56, off), submission(2, &[2; 40], 56, off)];
    both.iter().for_each(|s| rig.submit(s));
    rig.settle();
    for s in [&first, &both[0], &both[1]] {
        rig.assert_reference(s);
        assert_eq!(rig.of(s.ticket.0).report.as_ref().unwrap().preempted, 0);
    }
    assert!(rig.world.ledger.prefix.evicted.0 > 0);
    rig.assert_empty();
}

/// A target that says something else when it is asked again: tokens that were committed are computed once more behind a
/// preemption, not judged once more, and every row gets on.
#[test]
fn what_is_committed_is_not_judged_again() {
    for change in [5, 20, 45, 80] {
        let config = ToyConfig { moody_at: change, ..ToyConfig::default() };
        let mut rig = Rig::new(&Limits { pages: 6, ..Limits::new(4, 96) }, config);
        let all: Vec<Submission> = (0..4)
            .map(|t| submission(t, &[1, 2, 3, t as u32], 80, speculation(Strategy::ALL[t as usize], 7)))
            .collect();
        all.iter().for_each(|s| rig.submit(s));
        let mut still = 0;
        while (0..4).any(|t| rig.heard.get(&Ticket(t)).is_none_or(|h| h.report.is_none())) {
            let said = (0..4).map(|t| rig.of_len(t)).sum::<usize>();
            rig.tick();
            still = if (0..4).map(|t| rig.of_len(t)).sum::<usize>() > said { 0 } else { still + 1 };
            assert!(still < 12, "nobody gets on");
        }
        let reports: Vec<&Report> = (0..4).map(|t| rig.of(t).report.as_ref().unwrap()).collect();
        for (t, report) in reports.iter().enumerate() {
            assert_eq!(rig.of(t as u64).outcome.tokens.len(), 80);
            assert_eq!(report.completion_tokens, 80);
        }
        assert!(reports.iter().map(|r| r.preempted).sum::<u64>() > 0);
        // Rows that were judged: one an anchor, and the drafts; none of them twice.
        let drafted: u64 = reports.iter().map(|r| r.total.drafted).sum();
        let anchors: u64 = reports.iter().map(|r| r.steps + r.first).sum();
        assert_eq!(rig.world.gauges().read().engine.forward_rows[1], anchors + drafted);
        rig.send(Command::Stop);
    }
}
