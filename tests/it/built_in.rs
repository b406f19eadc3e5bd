//! The promise on real weights: speculation, batching, chunking and preemption change nothing but time. The built-in
//! model under the whole tick, every strategy against plain decoding.

use std::sync::{Arc, OnceLock};

use engine::api::{Command, Finish, Sampling, Strategy, Submission, WindowPolicy};
use engine::exec::{CpuExecutor, ExecOptions, KvType};
use engine::ids::{Ticket, TokenId};
use engine::limits::Limits;
use engine::memory::{Memory, MemoryError};
use engine::model::load::LoadOptions;
use engine::step::{Fault, LogitEdit};
use engine::tables::counters;
use engine_bin::open::{ModelSource, Opened};
use engine_io::OpenOptions;
use engine_io::text::EncodeOptions;
use engine_tests::toy::{Rig, speculation, submission};

const CONTEXT: usize = 160;
const TOKENS: u32 = 40;

fn opened() -> &'static Opened {
    static OPENED: OnceLock<Opened> = OnceLock::new();
    OPENED.get_or_init(|| {
        Opened::new(&ModelSource::BuiltIn, OpenOptions::default(), LoadOptions::default())
            .unwrap_or_else(|error| panic!("the built-in model: {error}"))
    })
}

fn rig(limits: &Limits, threads: usize) -> Rig {
    let o = opened();
    let options = ExecOptions { threads, ..ExecOptions::default() };
    let executor = CpuExecutor::new(Arc::clone(&o.model), limits.clone(), options);
    Rig::of_executor(limits, Box::new(executor), Arc::clone(&o.pieces))
}

#[test]
fn sizes_that_cannot_be_had_are_errors() {
    let options = ExecOptions { kv_type: KvType::F32, ..ExecOptions::default() };
    let ask = |limits: Limits| Memory::of_executor(&opened().model, &limits, &options)?.ask_system(&limits);
    assert_eq!(ask(Limits::new(2, CONTEXT)), Ok(()));
    // More than the addresses of a process, whatever the system promises beyond its memory.
    let huge = Limits::new(15, u32::MAX as usize - 1);
    assert!(matches!(ask(huge), Err(MemoryError::System { slots: 15, .. })));
    for context in [0, 1, usize::MAX] {
        assert!(matches!(ask(Limits::new(511, context)), Err(MemoryError::Limits(_))), "{context}");
    }
}

fn work(strategy: Strategy, width: u8) -> Vec<Submission> {
    let text: &[&[u8]] = &[
        b"def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
        b"for i in range(10):\n    print(i)\nfor j in range(10):\n",
        b"x",
    ];
    let encode = |t: &&[u8]| opened().tokenizer.encode(t, EncodeOptions::default());
    let mut all: Vec<Submission> = text
        .iter()
        .map(encode)
        .zip(0..)
        .map(|(prompt, ticket)| submission(ticket, &prompt, TOKENS, speculation(strategy, width)))
        .collect();
    all[1].sampling = Sampling {
        temperature: 0.8,
        top_p: 0.95,
        repeat_penalty: 1.1,
        frequency_penalty: 0.1,
        seed: 7,
        ..Sampling::greedy()
    };
    all[2].logprobs = Some(2);
    all
}

/// Runs the work together and returns what each ticket got.
fn run(rig: &mut Rig, all: &[Submission]) -> Vec<(Vec<TokenId>, String, String)> {
    all.iter().for_each(|s| rig.submit(s));
    rig.settle();
    rig.assert_empty();
    let result = all.iter().map(|s| {
        let heard = rig.of(s.ticket.0);
        counters::check(heard.report.as_ref().expect("finished"));
        // Log-probabilities as text: equal bits print alike, NaN included.
        (heard.outcome.tokens.clone(), heard.outcome.text.clone(), format!("{:?}", heard.outcome.logprobs))
    });
    result.collect()
}

fn plain() -> &'static Vec<(Vec<TokenId>, String, String)> {
    static PLAIN: OnceLock<Vec<(Vec<TokenId>, String, String)>> = OnceLock::new();
    PLAIN.get_or_init(|| {
        // One at a time, one row at a time.
        let limits = Limits { prefill_chunk: 1, ..Limits::new(1, CONTEXT) };
        let mut all = Vec::new();
        for s in work(Strategy::Off, 0) {
            all.extend(run(&mut rig(&limits, 1), &[s]));
        }
        assert!(all.iter().all(|(tokens, ..)| !tokens.is_empty()));
        all
    })
}

#[test]
fn every_strategy_and_width_commits_what_plain_decoding_does() {
    let mut accepted = [0; 4];
    for strategy in Strategy::ALL {
        for width in [1, 2, 7, 15, 32] {
            let mut rig = rig(&Limits::new(3, CONTEXT), 2);
            assert_eq!(&run(&mut rig, &work(strategy, width)), plain(), "{} at {width}", strategy.name());
            let reports = rig.heard.values().filter_map(|h| h.report.as_ref());
            accepted[strategy as usize] += reports.map(|r| r.total.accepted).sum::<u64>();
        }
    }
    assert!(accepted[0] == 0 && accepted[1..].iter().all(|a| *a > 0), "{accepted:?}");
}

#[test]
fn chunks_pressure_and_stops_change_nothing() {
    for (chunk, pages, slots) in [(7, 12, 3), (64, 10, 2), (1, 11, 3)] {
        let limits = Limits { prefill_chunk: chunk, pages, ..Limits::new(slots, CONTEXT) };
        let mut rig = rig(&limits, 1);
        assert_eq!(&run(&mut rig, &work(Strategy::MtpSuffix, 15)), plain(), "{chunk} {pages} {slots}");
    }
    // Adaptive widths follow the clock; tokens do not.
    let mut all = work(Strategy::MtpSuffix, 15);
    all.iter_mut().for_each(|s| s.speculation.policy = WindowPolicy::Adaptive);
    let mut rig = rig(&Limits::new(3, CONTEXT), 1);
    rig.world.calibrate();
    assert_eq!(&run(&mut rig, &all), plain());
}

#[test]
fn a_row_that_lost_its_pages_goes_on_as_if_nothing_had_been() {
    let limits = Limits { pages: CONTEXT / 16, ..Limits::new(2, CONTEXT) };
    let mut rig = rig(&limits, 1);
    let mut all = work(Strategy::MtpSuffix, 7);
    all.truncate(2);
    all.iter().for_each(|s| rig.submit(s));
    for _ in 0..8 {
        rig.tick();
    }
    // The older row stalls; a third that needs the whole pool takes its pages.
    rig.send(Command::Pause(Ticket(0)));
    let prompt: Vec<u32> = (0..120).map(|i| 5 + i % 7).collect();
    let big = submission(9, &prompt, 30, speculation(Strategy::Off, 0));
    rig.submit(&big);
    while rig.heard.get(&Ticket(9)).is_none_or(|h| h.report.is_none()) {
        rig.tick();
    }
    rig.send(Command::Resume(Ticket(0)));
    rig.settle();
    for (s, want) in all.iter().zip(plain()) {
        assert_eq!(rig.of(s.ticket.0).outcome.tokens, want.0);
    }
    assert!(rig.of(0).report.as_ref().expect("finished").preempted > 0);
    rig.assert_empty();
}

#[test]
fn a_fork_of_the_same_choice_says_the_same() {
    let mut rig = rig(&Limits::new(2, CONTEXT), 1);
    let s = &work(Strategy::MtpSuffix, 7)[1];
    rig.submit(s);
    while rig.of_len(1) < 10 {
        rig.tick();
    }
    let told = rig.of(1).outcome.clone();
    let slot = rig.slot(1).expect("it runs");
    assert!(rig.world.fork(slot, Ticket(5), s.sampling.choice).is_some());
    rig.heard.entry(Ticket(5)).or_default().outcome = told;
    rig.settle();
    assert_eq!(rig.of(5).outcome, rig.of(1).outcome);
    assert_eq!(rig.of(5).outcome.tokens, plain()[1].0);
    rig.assert_empty();
}

#[test]
fn a_fault_a_fork_and_a_preemption_leave_nothing_behind() {
    let limits = Limits { pages: CONTEXT / 16, ..Limits::new(4, CONTEXT) };
    let mut rig = rig(&limits, 1);
    let all = work(Strategy::MtpSuffix, 7);
    // Three tokens may be chosen, each once: behind them nothing finite is left.
    let mut faulty = submission(8, &[5, 6, 7, 8], TOKENS, speculation(Strategy::MtpSuffix, 7));
    let vocab = opened().model.vocab as u32;
    let ban = |token| LogitEdit { token: TokenId(token), repeat: 1.0, add: f32::NEG_INFINITY };
    faulty.sampling.logit_bias = (0..vocab).filter(|t| !(40..43).contains(t)).map(ban).collect();
    faulty.sampling.presence_penalty = f32::INFINITY;
    rig.submit(&all[0]);
    rig.submit(&all[1]);
    rig.submit(&faulty);
    while rig.of_len(1) < 10 {
        rig.tick();
    }
    for (from, to) in [(0, 4), (1, 5)] {
        let told = rig.of(from).outcome.clone();
        let slot = rig.slot(from).expect("it runs");
        assert!(rig.world.fork(slot, Ticket(to), all[from as usize].sampling.choice).is_some());
        rig.heard.entry(Ticket(to)).or_default().outcome = told;
    }
    rig.settle();
    for (ticket, want) in [(0, 0), (1, 1), (4, 0), (5, 1)] {
        assert_eq!(rig.of(ticket).outcome.tokens, plain()[want].0, "{ticket}");
    }
    assert_eq!((rig.of(8).outcome.finish, rig.of(8).outcome.tokens.len()), (Some(Finish::Fault(Fault::Barred)), 3));
    let preempted = [0, 1, 4, 5].map(|t| rig.of(t).report.as_ref().expect("finished").preempted);
    assert!(preempted.iter().sum::<u64>() > 0, "the pool is too small for all: {preempted:?}");
    rig.assert_empty();
}

#[test]
fn windows_are_as_wide_as_the_free_pages() {
    let limits = Limits { pages: 4, ..Limits::new(2, 64) };
    let mut rig = rig(&limits, 1);
    let mut spec = speculation(Strategy::Mtp, 7);
    spec.mtp_tokens = 7;
    let mut all = [submission(0, &[40, 41, 42], 50, spec), submission(1, &[50, 51, 52], 50, spec)];
    all.iter_mut().for_each(|s| s.stop.ignore_eos = true);
    all.iter().for_each(|s| rig.submit(s));
    rig.tick();
    let slots = [0, 1].map(|t| rig.slot(t).expect("it runs"));
    let mut narrowed = 0;
    // As long as both anchors fit their pages, nobody is preempted for a draft: chains are asked for less.
    while slots.iter().all(|s| rig.world.ledger.requests.kv_len[s.index()] < 32) {
        rig.tick();
        let l = &rig.world.ledger;
        for slot in slots {
            assert_eq!(l.counters.report[slot.index()].preempted, 0);
            narrowed += u32::from(l.plans.counted[slot.index()] && l.plans.mtp_depth[slot.index()] < 7);
        }
    }
    assert!(narrowed > 0, "the pages never were too few");
    rig.settle();
    let mut roomy = self::rig(&Limits::new(2, 64), 1);
    all.iter().for_each(|s| roomy.submit(s));
    roomy.settle();
    assert_eq!([rig.of(0), rig.of(1)].map(|h| &h.outcome), [roomy.of(0), roomy.of(1)].map(|h| &h.outcome));
    rig.assert_empty();
}
