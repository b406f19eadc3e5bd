//! What a package says about drafting: the strategies that its model can run, their settings, and the default, chosen by
//! measurement where there is one.
//!
//! A result file is JSON of schema `slipstream-bench/1` ([`crate::bench::result`]), of which this much is read:
//!
//! ```json
//! {"schema": "slipstream-bench/1",
//!  "model": {"tensor_tree_sha256": "<64 hex>"},
//!  "arms": [{"strategy": "off", "settings": {}, "decode_tok_s": {"median": 10.5}, "output_sha256": "<64 hex>"},
//!           {"strategy": "mtp-suffix",
//!            "settings": {"mtp_tokens": 3, "suffix_min": 5, "suffix_max": 32, "suffix_tokens": 48,
//!                         "window": {"policy": "fixed", "initial": 16, "min": 1, "max": 32}},
//!            "decode_tok_s": {"median": 14.2}, "output_sha256": "<64 hex>"}]}
//! ```
//!
//! `settings` has the names of a request's `speculative` object; what is absent is the built-in value. `output_sha256`
//! is over the committed ids of all prompts of the arm. An arm whose output is not that of `off`, or that says `void` since
//! one of its rounds had another, does not count. One that says `failed`, or names no strategy, as another server's, is
//! passed over.

use std::path::Path;

use engine::api::{Speculation, Strategy, WindowPolicy};
use engine::limits::{MTP_TOKENS_MAX, SUFFIX_MAX_DEFAULT, SUFFIX_MIN_DEFAULT, WINDOW_MAX};
use engine_io::digest::Sha256;
use engine_io::package::manifest::{self, ExtensionPolicy, Generation, Named, Proposer, Speculative};
use engine_io::plain;
use engine_io::provenance::FileEntry;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::PackError;
use crate::bench::result::{SCHEMA, Settings, Spread};
use crate::menu::{BUILT_IN, Given};

/// Results beyond this are none.
const BYTES_MAX: u64 = 64 << 20;

/// What is read of a result. The rest of it may be anything.
#[derive(Clone, PartialEq, Debug, Deserialize)]
struct BenchView {
    schema: String,
    #[serde(default)]
    model: Model,
    arms: Vec<Arm>,
}

/// What was measured.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
struct Model {
    #[serde(default)]
    tensor_tree_sha256: Option<Sha256>,
}

/// One way to decode.
#[derive(Clone, PartialEq, Debug, Deserialize)]
struct Arm {
    #[serde(default)]
    strategy: Option<Strategy>,
    #[serde(default)]
    settings: Settings,
    decode_tok_s: Spread,
    #[serde(default)]
    output_sha256: Option<Sha256>,
    #[serde(default)]
    void: Option<IgnoredAny>,
    #[serde(default)]
    failed: Option<IgnoredAny>,
}

/// What a package will say.
#[derive(Clone, PartialEq, Debug)]
pub struct Recipe {
    /// Settings of every strategy that the model can run, in their documented order.
    pub strategies: Vec<Speculation>,
    /// The default.
    pub default: Strategy,
    /// Why that one.
    pub reason: String,
    /// It was measured that every strategy loses against off.
    pub off_is_fastest: bool,
    /// The measurement.
    pub evidence: Option<FileEntry>,
    /// Tensors that were measured, if the result says.
    pub measured: Option<Sha256>,
}

impl Recipe {
    /// Without a measurement: the composite where there is a head.
    pub fn built_in(head: bool) -> Self {
        let default = if head { Strategy::MtpSuffix } else { Strategy::NgramSuffix };
        Self {
            strategies: runnable(head).map(settings_of).collect(),
            default,
            reason: "built-in default: nothing was measured on this model".to_owned(),
            off_is_fastest: false,
            evidence: None,
            measured: None,
        }
    }

    /// From a result file, for a model with or without a head.
    ///
    /// # Errors
    /// [`PackError::Refused`]: the file is none, has no arm `off`, or none whose output is that of `off`, or its arms
    /// draft with a head that the model has not.
    pub fn of_bench(path: &Path, head: bool) -> Result<Self, PackError> {
        let refused = |what: String| PackError::Refused(format!("{}: {what}", path.display()));
        let (result, bytes): (BenchView, _) = plain::json(path, BYTES_MAX, "result of schema slipstream-bench/1")?;
        if result.schema != SCHEMA {
            return Err(refused(format!("schema is {:?}, expected {SCHEMA:?}", result.schema)));
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let evidence = FileEntry { path: name, byte_size: bytes.len() as u64, sha256: Some(Sha256::of(&bytes)) };
        let mut recipe = choose(&result.arms, head).map_err(refused)?;
        (recipe.evidence, recipe.measured) = (Some(evidence), result.model.tensor_tree_sha256);
        Ok(recipe)
    }

    /// The `generation` block; `head` is the MTP block's number.
    pub fn generation(&self, head: Option<u32>) -> Generation {
        let mut proposers = Named::default();
        let strategies = self.strategies.iter().map(|settings| {
            let entry = entry(settings, head, &mut proposers);
            (settings.strategy.name().to_owned(), entry)
        });
        let strategies = Named(strategies.collect());
        let default = self.default.name().to_owned();
        let speculative = Speculative { default, proposers, strategies, unread: Default::default() };
        Generation { speculative_decoding: Some(speculative), unread: Default::default() }
    }
}

/// Strategies of a package.
fn runnable(head: bool) -> impl Iterator<Item = Strategy> {
    let all = [Strategy::Mtp, Strategy::NgramSuffix, Strategy::MtpSuffix];
    all.into_iter().filter(move |strategy| head || !strategy.uses_mtp())
}

fn settings_of(strategy: Strategy) -> Speculation {
    Given::default().over(Speculation { strategy, ..BUILT_IN }).expect("built-in values fit each other")
}

/// An arm of an engine of ours: one that says how it drafts.
struct Measured<'a> {
    strategy: Strategy,
    arm: &'a Arm,
}

impl Measured<'_> {
    fn speed(&self) -> f64 {
        self.arm.decode_tok_s.median
    }

    fn speculation(&self) -> Result<Speculation, String> {
        let given = Given::from(&self.arm.settings);
        let settings = given.over(Speculation { strategy: self.strategy, ..BUILT_IN })?;
        let Speculation { mtp_tokens, suffix_min, suffix_max, suffix_tokens, window_min, window_max, .. } = settings;
        let matches = SUFFIX_MIN_DEFAULT..=SUFFIX_MAX_DEFAULT;
        let fine = usize::from(mtp_tokens) <= MTP_TOKENS_MAX
            && matches.contains(&suffix_min.into())
            && matches.contains(&suffix_max.into())
            && usize::from(suffix_tokens.max(window_max)) <= WINDOW_MAX;
        if !fine {
            return Err(format!(
                "settings beyond what is done here: mtp_tokens at most {MTP_TOKENS_MAX}, suffix_min and suffix_max \
                 {SUFFIX_MIN_DEFAULT} to {SUFFIX_MAX_DEFAULT}, suffix_tokens and window.max at most {WINDOW_MAX}"
            ));
        }
        let idle = self.strategy.uses_mtp() && mtp_tokens == 0 || self.strategy.uses_suffix() && suffix_tokens == 0;
        if idle || window_min == 0 {
            return Err("drafts nothing, which a package calls off".to_owned());
        }
        Ok(settings)
    }

    fn text(&self) -> String {
        format!("{} {:.2} tok/s", self.strategy.name(), self.speed())
    }
}

/// The fastest arm whose output is that of `off`; of every other strategy its own fastest.
fn choose(arms: &[Arm], head: bool) -> Result<Recipe, String> {
    let ran = arms.iter().filter(|arm| arm.failed.is_none());
    let measured = ran.filter_map(|arm| Some(Measured { strategy: arm.strategy?, arm }));
    let arms: Vec<Measured<'_>> = measured.collect();
    // No machine is slower or faster; what is said of a ratio stays a number.
    let speeds = 1e-6..=1e9;
    if let Some(bad) = arms.iter().find(|arm| !speeds.contains(&arm.speed())) {
        let (name, speed) = (bad.strategy.name(), bad.speed());
        return Err(format!(
            "an arm of {name} has a median of {speed:e} tok/s, expected a number above 0, from 1e-6 to 1e9"
        ));
    }
    if let Some(arm) = arms.iter().find(|arm| arm.strategy.uses_mtp() && !head) {
        let name = arm.strategy.name();
        return Err(format!("an arm drafts with {name}, and the model has no MTP block; measure this model"));
    }
    let faster = |a: &&Measured<'_>, b: &&Measured<'_>| a.speed().total_cmp(&b.speed());
    let off = arms.iter().filter(|arm| arm.strategy == Strategy::Off && arm.arm.void.is_none()).max_by(faster);
    let off = off.ok_or("has no arm off that counts, which every other one is held against; measure off too")?;
    let drafting = arms.iter().filter(|arm| arm.strategy != Strategy::Off);
    if off.arm.output_sha256.is_none() {
        return Err("its arm off has no output_sha256, which every other one is held against; measure again".to_owned());
    }
    let same = |arm: &&Measured<'_>| arm.arm.void.is_none() && arm.arm.output_sha256 == off.arm.output_sha256;
    let (same, void): (Vec<&Measured<'_>>, Vec<&Measured<'_>>) = drafting.partition(same);
    let best = same.iter().copied().max_by(faster).ok_or_else(|| {
        format!("no arm that drafts has the output of off ({} have another); measure again", void.len())
    })?;
    let mut strategies = Vec::new();
    for strategy in runnable(head) {
        let fastest = same.iter().copied().filter(|arm| arm.strategy == strategy).max_by(faster);
        let settings = fastest.map(|arm| arm.speculation().map_err(|e| format!("the arm {}: {e}", arm.text())));
        strategies.push(settings.transpose()?.unwrap_or_else(|| settings_of(strategy)));
    }
    let (count, ratio, off_is_fastest) = (same.len(), best.speed() / off.speed(), best.speed() <= off.speed());
    let (best_text, off_text) = (best.text(), off.text());
    let mut reason = match off_is_fastest {
        false => format!(
            "fastest of {count} measured arms with the output of off: {best_text}, {off_text} ({ratio:.2} times)"
        ),
        // A default is the id of a strategy, and off is none.
        true => format!(
            "off was fastest, and a package cannot have it for its default: {off_text}; of {count} measured arms with its \
             output {best_text} loses least ({ratio:.2} times)"
        ),
    };
    if !void.is_empty() {
        reason.push_str(&format!("; {} arms with another output were left out", void.len()));
    }
    Ok(Recipe { strategies, default: best.strategy, reason, off_is_fastest, evidence: None, measured: None })
}

fn entry(settings: &Speculation, head: Option<u32>, proposers: &mut Named<Proposer>) -> manifest::Strategy {
    let strategy = settings.strategy;
    let mtp = Proposer {
        kind: "native-mtp".to_owned(),
        prediction_depth: Some(1),
        layer_indices: head.map(|head| vec![head]),
        max_draft_tokens: Some(settings.mtp_tokens.into()),
        ..Proposer::default()
    };
    let suffix = Proposer {
        kind: "ngram-suffix".to_owned(),
        ngram_min: Some(settings.suffix_min.into()),
        ngram_max: Some(settings.suffix_max.into()),
        max_proposal_tokens: Some(settings.suffix_tokens.into()),
        history_scope: Some("request".to_owned()),
        ..Proposer::default()
    };
    let mtp = strategy.uses_mtp().then(|| named(proposers, "mtp", mtp));
    let suffix = strategy.uses_suffix().then(|| named(proposers, "suffix", suffix));
    let window = manifest::WindowPolicy {
        default: match settings.policy {
            WindowPolicy::Fixed => "fixed",
            WindowPolicy::Adaptive => "adaptive",
        }
        .to_owned(),
        initial_window: Some(settings.window_initial.into()),
        min_window: Some(settings.window_min.into()),
        max_window: Some(settings.window_max.into()),
        pipeline_depth: Some(1),
        ..manifest::WindowPolicy::default()
    };
    let base = manifest::Strategy { window_policy: Some(window), ..manifest::Strategy::default() };
    match (mtp, suffix) {
        (Some(primary), Some(extender)) => manifest::Strategy {
            kind: "composite".to_owned(),
            primary: Some(primary),
            extender: Some(extender),
            extension_policy: Some(ExtensionPolicy {
                max_tokens: settings.suffix_tokens.into(),
                ..ExtensionPolicy::default()
            }),
            ..base
        },
        (Some(mtp), None) => manifest::Strategy { kind: "native-mtp".to_owned(), proposer: Some(mtp), ..base },
        (None, suffix) => manifest::Strategy { kind: "ngram-suffix".to_owned(), proposer: suffix, ..base },
    }
}

/// The name of a proposer like this: one that is there, or a new one.
fn named(proposers: &mut Named<Proposer>, base: &str, proposer: Proposer) -> String {
    if let Some((name, _)) = proposers.iter().find(|(_, there)| **there == proposer) {
        return name.to_owned();
    }
    let number = |n: usize| if n == 1 { base.to_owned() } else { format!("{base}-{n}") };
    let name = (1..).map(number).find(|name| proposers.get(name).is_none()).expect("endless");
    proposers.0.push((name.clone(), proposer));
    name
}

#[cfg(test)]
mod tests;
