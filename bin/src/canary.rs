//! The acceptance canary: does the MTP block that was loaded belong to this model?
//!
//! A block of another model, with tensors in the wrong places or run with the wrong norms, loads and runs all the same.
//! Answers stay right, since the model verifies every draft, but every draft is wasted work. So three built-in passages
//! are run before anything is served, and the block's first draft after each token is compared with the model's own
//! choice there: it is what acceptance at position 0 of a window means.
//!
//! The model does not write here, it reads: both sides see the same given text. By row invariance that is bit for bit
//! the draft and the choice that decoding would make after these tokens, at the price of a prefill instead of a forward
//! pass a token, and a model that falls into repeating itself cannot make a bad block look good.
//!
//! It finds blocks that draft at random, not those that draft somewhat worse than they could: a wrong norm behind the
//! block may cost few drafts, and is found by comparing logits with a reference.
//!
//! Cost: [`PASSAGE_TOKENS`] rows of trunk and block with their logits for a block that fits, which ends the check with
//! the first passage it passes, three times as much for one that does not.

use std::fmt;
use std::sync::Arc;

use engine::exec::{CpuExecutor, ExecOptions, Pool};
use engine::ids::TokenId;
use engine::limits::Limits;
use engine::model::{Model, MtpStatus};
use engine::sample;
use engine::step::Executor;
use engine_io::text::{EncodeOptions, Tokenizer};

use crate::bench::single::{Single, Want};

/// Tokens of a passage that only give the block something to look back on.
pub const LEAD_TOKENS: usize = 8;
/// Tokens of a passage after which drafts are judged.
pub const JUDGED_TOKENS: usize = 64;
/// Tokens of a passage that are run.
pub const PASSAGE_TOKENS: usize = LEAD_TOKENS + JUDGED_TOKENS;
/// A block that drafts as the model chooses less often than this is not the model's.
pub const LEAST_PERCENT: usize = 10;
/// Rows whose logits are held at once.
const CHUNK: usize = 24;

/// Two programs and a piece of prose, each of more than [`PASSAGE_TOKENS`] tokens in any vocabulary of words.
pub const PASSAGES: [&str; 3] = [
    "#include <stdio.h>\n\nstatic int sum(const int * values, int count) {\n    int total = 0;\n    for (int i = 0; \
     i < count; i++) {\n        if (values[i] < 0) {\n            return -1;\n        }\n        total += values[i];\n    \
     }\n    return total;\n}\n\nint main(void) {\n    const int values[] = { 1, 2, 3, 4 };\n    const int count = \
     sizeof(values) / sizeof(values[0]);\n    printf(\"sum = %d\\n\", sum(values, count));\n    return 0;\n}\n",
    "import json\n\n\ndef load_items(path):\n    with open(path) as file:\n        items = json.load(file)\n    return [item \
     for item in items if item[\"price\"] > 0]\n\n\ndef total_price(items):\n    result = 0\n    for item in items:\n        \
     result += item[\"price\"] * item[\"count\"]\n    return result\n\n\ndef main():\n    items = load_items(\"items.json\")\n    \
     print(\"items:\", len(items))\n    print(\"total:\", total_price(items))\n\n\nif __name__ == \"__main__\":\n    main()\n",
    "The old harbour lies at the mouth of the river, where the water is deep enough for large ships. In the morning the \
     boats come back with the night's catch, and the market on the quay is full of people before the sun is up. By noon \
     the stalls are empty, the nets hang in the wind to dry, and the only sound is that of the waves against the wall. \
     In the winter the boats stay in the harbour when the wind comes from the north, and the people of the town wait \
     for better weather.\n",
];

/// How often the first draft was the model's own choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tally {
    /// Drafts that the model would have accepted.
    pub agreed: usize,
    /// Tokens after which there was a choice to compare with.
    pub judged: usize,
}

impl Tally {
    /// Whether a block that drafts like this may be the model's. Nothing judged proves nothing.
    pub fn fits(self) -> bool {
        self.judged == 0 || self.agreed * 100 >= self.judged * LEAST_PERCENT
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = 100.0 * self.agreed as f64 / self.judged.max(1) as f64;
        write!(f, "{} of {} ({percent:.1} %)", self.agreed, self.judged)
    }
}

/// Limits of an executor that can run a passage.
pub fn limits() -> Limits {
    let window_max = 1;
    Limits { step_rows: CHUNK, prefill_chunk: CHUNK, window_max, ..Limits::new(1, PASSAGE_TOKENS) }
}

/// Runs the passages until one fits; the last tally is the verdict.
///
/// # Panics
/// If the executor has no MTP block.
pub fn listen<E: Executor>(executor: E, tokenizer: &Tokenizer) -> Vec<Tally> {
    let mut single = Single::new(executor, &limits());
    let mut tallies = Vec::with_capacity(PASSAGES.len());
    for passage in PASSAGES {
        let options = EncodeOptions { add_special: true, ..EncodeOptions::default() };
        let tally = tally(&mut single, &tokenizer.encode(passage.as_bytes(), options));
        tallies.push(tally);
        if tally.fits() {
            break;
        }
    }
    tallies
}

/// Compares drafts and choices after the tokens of a passage. One with too few tokens is not judged.
fn tally<E: Executor>(single: &mut Single<E>, tokens: &[u32]) -> Tally {
    let vocab = single.executor().shape().vocab;
    let best = |logits: &[f32]| -> Vec<Option<TokenId>> {
        logits.chunks_exact(vocab).map(|row| sample::pick(row, None)).collect()
    };
    let mut pairs = Vec::with_capacity(PASSAGE_TOKENS);
    single.reset();
    for chunk in tokens.get(..PASSAGE_TOKENS).unwrap_or_default().chunks(CHUNK) {
        let choices = best(&single.trunk(chunk, chunk.len(), Want::ProbeAll).logits);
        let drafts = best(&single.mtp(chunk, 0, true).mtp_logits);
        pairs.extend(choices.into_iter().zip(drafts));
    }
    // Where the model itself has no choice to make, the block is not to blame.
    let judged = pairs.iter().skip(LEAD_TOKENS).filter(|(choice, _)| choice.is_some());
    let agreed = judged.clone().filter(|(choice, draft)| choice == draft).count();
    Tally { agreed, judged: judged.count() }
}

/// What was found out about the MTP block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// There is none.
    Absent,
    /// It may draft: it fits, or it was asked for all the same.
    Kept,
    /// It does not fit and was taken from the model.
    Dropped,
}

/// Whether the trunk has no finite logit after any token at the start of any passage: it can answer nothing. The first
/// passage ends the question for a model that is well, at the price of [`LEAD_TOKENS`] rows.
pub fn is_mute<E: Executor>(executor: E, tokenizer: &Tokenizer) -> bool {
    let mut single = Single::new(executor, &limits());
    let vocab = single.executor().shape().vocab;
    let mut asked = false;
    for passage in PASSAGES {
        let options = EncodeOptions { add_special: true, ..EncodeOptions::default() };
        let tokens = tokenizer.encode(passage.as_bytes(), options);
        let Some(tokens) = tokens.get(..LEAD_TOKENS) else { continue };
        asked = true;
        single.reset();
        let logits = &single.trunk(tokens, tokens.len(), Want::ProbeAll).logits;
        if logits.chunks_exact(vocab).any(|row| sample::pick(row, None).is_some()) {
            return false;
        }
    }
    asked
}

/// Checks the MTP block of a model that nothing else uses yet, on the workers of `pool`. One that does not fit is
/// reported and, unless `force`, taken from the model. `head` is the file that the block is from.
///
/// # Panics
/// If the model is shared.
pub fn judge(
    model: &mut Arc<Model>,
    tokenizer: &Tokenizer,
    options: ExecOptions,
    pool: &Arc<Pool>,
    head: &str,
    force: bool,
) -> Verdict {
    if matches!(model.mtp, MtpStatus::Unavailable(_)) {
        return Verdict::Absent;
    }
    let tallies = listen(CpuExecutor::with_pool(Arc::clone(model), limits(), options, Arc::clone(pool)), tokenizer);
    let told: Vec<String> = tallies.iter().map(Tally::to_string).collect();
    let told = told.join(", ");
    if tallies.iter().all(|tally| tally.judged == 0) {
        tracing::warn!(head, "the MTP block was not checked: no passage has tokens after which the model has a choice");
        return Verdict::Kept;
    }
    if tallies.last().is_some_and(|last| last.fits()) {
        tracing::info!(head, first_drafts_accepted = told, "the MTP block fits the model");
        return Verdict::Kept;
    }
    let summary = format!(
        "{head}: the MTP block does not fit the model: of its first drafts on three built-in passages the model would \
         have accepted {told}, expected at least {LEAST_PERCENT} % in one of them"
    );
    tracing::warn!("{summary}");
    for cause in CAUSES {
        tracing::warn!("likely cause: {cause}");
    }
    if force {
        tracing::warn!(
            "--mtp-force: it drafts all the same; answers are right, but its drafts cost more than they give"
        );
        return Verdict::Kept;
    }
    tracing::warn!("MTP drafting is turned off, answers are not affected; --mtp-force drafts all the same");
    let model = Arc::get_mut(model).expect("the executor of the check has ended, and nothing else has the model");
    model.drop_mtp(summary);
    Verdict::Dropped
}

/// Why a block may load and yet draft at random, most frequent first, with what to do.
const CAUSES: [&str; 4] = [
    "the block belongs to another model, or to another revision or fine-tune of this one; take both from one source",
    "its tensors are stale, never trained or in the wrong places, such as eh_proj with its two halves exchanged; convert \
     the model again",
    "its norms are not those it was trained with: 1 added to weights that have it or missing from those that lack it \
     (convert again), or another convention (--mtp-norm for nemotron_h_moe, --mtp-hidden-norm for qwen4exp)",
    "quantisation has damaged it; keep the block in Q8_0 or BF16",
];
