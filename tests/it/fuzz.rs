//! Damaged inputs are refused, or taken for what they still are, and do nothing else: a few thousand for every parser.

use std::panic::{AssertUnwindSafe, catch_unwind};

use engine_tests::fuzz::{ALL, Inputs, find};

const SEED: u64 = 0x51_1b5;

/// Every input in order is taken; of `count` damaged ones some are and some are not.
fn feed(name: &str, count: usize) {
    let target = find(name).unwrap_or_else(|| panic!("no target is called {name}"));
    let mut read = (target.reader)();
    let mut inputs = Inputs::new(target, SEED);
    for seed in inputs.seeds() {
        assert!(read(seed), "{name}: not taken: {:?}", String::from_utf8_lossy(seed));
    }
    let mut taken = 0;
    for nth in 1..=count {
        let input = inputs.make();
        let found = catch_unwind(AssertUnwindSafe(|| read(input)));
        let good = found.unwrap_or_else(|_| panic!("{name}: input {nth} of seed {SEED:#x}: {}", input.escape_ascii()));
        taken += usize::from(good);
    }
    assert!((1..count).contains(&taken), "{name}: {taken} of {count} were taken");
}

macro_rules! targets {
    ($($test:ident: $name:literal, $count:literal;)*) => {
        $(#[test]
        fn $test() {
            feed($name, $count);
        })*

        /// A target that no test runs is a parser that nobody tests.
        #[test]
        fn every_target_is_run() {
            let run = [$($name),*];
            assert_eq!(ALL.iter().map(|target| target.name).filter(|name| !run.contains(name)).collect::<Vec<_>>(), [""; 0]);
        }
    };
}

targets! {
    gguf: "gguf", 20_000;
    http: "http", 10_000;
    body_chat: "body-chat", 3_000;
    body_completions: "body-completions", 3_000;
    body_tokenize: "body-tokenize", 3_000;
    body_detokenize: "body-detokenize", 3_000;
    body_apply_template: "body-apply-template", 3_000;
    body_messages: "body-messages", 3_000;
    body_responses: "body-responses", 3_000;
    schema: "schema", 400;
    template: "template", 1_500;
    answer_xml: "answer-xml", 5_000;
    answer_hermes: "answer-hermes", 5_000;
    answer_llama3: "answer-llama3", 5_000;
    answer_nemotron2: "answer-nemotron2", 5_000;
    manifest: "manifest", 5_000;
    trace_slipstream: "trace-slipstream", 5_000;
    trace_openai: "trace-openai", 5_000;
    trace_openhands: "trace-openhands", 5_000;
    trace_swe_agent: "trace-swe-agent", 5_000;
    trace_mini_swe_agent: "trace-mini-swe-agent", 5_000;
    trace_tau_bench: "trace-tau-bench", 5_000;
    trace_aider: "trace-aider", 5_000;
    events: "events", 10_000;
    stage_frame: "stage-frame", 10_000;
    stage_request: "stage-request", 10_000;
    stage_reply: "stage-reply", 2_000;
}

/// The same numbers come again, so that what was found can be found again.
#[test]
fn inputs_are_a_function_of_their_seed() {
    for target in ALL {
        let list = |seed| {
            let mut inputs = Inputs::new(target, seed);
            (0..50).map(|_| inputs.make().to_vec()).collect::<Vec<_>>()
        };
        assert!(list(1) == list(1) && list(1) != list(2), "{}", target.name);
    }
}
