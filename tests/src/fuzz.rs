//! Parsers of what comes from outside, each fed with damaged inputs: one [`Target`] a parser, with inputs in order to
//! start from, the words of its language, and a function that reads any bytes at all and asserts what must hold whatever
//! they are. Tests run a few thousand damaged inputs of each, `engine-perf`'s `fuzz` as many as one has time for, and
//! `tests/fuzz` lets libFuzzer choose them.
//!
//! A finding is a panic. What is found becomes a fault fixed in the parser and a row of its own tests.

mod answer;
mod bodies;
mod files;
mod gguf;
mod http;
mod json;
mod mutate;
mod schema;
mod stage;
mod template;

pub use mutate::{Damage, Rng};

/// A parser and what it is fed.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Inputs in order.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// What its language is made of.
    pub words: &'static [&'static str],
    /// How inputs are damaged.
    pub damage: Damage,
    /// Reads an input; whether it was taken for one in order. Made once, for what reading needs.
    pub reader: fn() -> Reader,
}

/// Reads one input.
pub type Reader = Box<dyn FnMut(&[u8]) -> bool>;

/// Every parser.
pub const ALL: &[Target] = &[
    gguf::TARGET,
    http::TARGET,
    bodies::CHAT,
    bodies::COMPLETIONS,
    bodies::TOKENIZE,
    bodies::DETOKENIZE,
    bodies::APPLY_TEMPLATE,
    bodies::MESSAGES,
    bodies::RESPONSES,
    schema::TARGET,
    template::TARGET,
    answer::XML,
    answer::HERMES,
    answer::LLAMA3,
    answer::NEMOTRON2,
    files::MANIFEST,
    files::SLIPSTREAM,
    files::OPENAI,
    files::OPENHANDS,
    files::SWE_AGENT,
    files::MINI_SWE_AGENT,
    files::TAU_BENCH,
    files::AIDER,
    files::EVENTS,
    stage::FRAME,
    stage::REQUEST,
    stage::REPLY,
];

/// The target of a name.
pub fn find(name: &str) -> Option<&'static Target> {
    ALL.iter().find(|target| target.name == name)
}

/// Inputs made of a target's seeds, the same for the same seed.
pub struct Inputs {
    target: &'static Target,
    seeds: Vec<Vec<u8>>,
    rng: Rng,
    made: Vec<u8>,
}

impl Inputs {
    /// Inputs number `seed` of a target.
    pub fn new(target: &'static Target, seed: u64) -> Self {
        Self { target, seeds: (target.seeds)(), rng: Rng::new(seed), made: Vec::new() }
    }

    /// The inputs in order that all others are made of.
    pub fn seeds(&self) -> &[Vec<u8>] {
        &self.seeds
    }

    /// One more.
    pub fn make(&mut self) -> &[u8] {
        let Self { target, seeds, rng, made } = self;
        made.clear();
        made.extend_from_slice(&seeds[rng.below(seeds.len())]);
        target.damage.apply(made, seeds, target.words, rng);
        made
    }
}
