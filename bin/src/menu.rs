//! Which strategies a server offers, and with which settings: flags, over what the model's package says, over what is
//! built in.

use engine::api::{Speculation, Strategy, WindowPolicy};
use engine::limits::{
    MTP_TOKENS_DEFAULT, MTP_TOKENS_MAX, SUFFIX_MAX_DEFAULT, SUFFIX_MIN_DEFAULT, SUFFIX_TOKENS_DEFAULT, WINDOW_MAX,
    WINDOW_MAX_DEFAULT,
};
use engine_io::package::check::{self, OFF};
use engine_io::package::manifest::{Manifest, Named, Proposer, Speculative, Strategy as Entry};

/// First width of an adaptive window.
const WINDOW_INITIAL_DEFAULT: usize = 16;

/// Settings where nobody says anything.
pub const BUILT_IN: Speculation = Speculation {
    strategy: Strategy::Off,
    mtp_tokens: MTP_TOKENS_DEFAULT as u8,
    suffix_min: SUFFIX_MIN_DEFAULT as u8,
    suffix_max: SUFFIX_MAX_DEFAULT as u8,
    suffix_tokens: SUFFIX_TOKENS_DEFAULT as u8,
    policy: WindowPolicy::Adaptive,
    window_initial: WINDOW_INITIAL_DEFAULT as u8,
    window_min: 1,
    window_max: WINDOW_MAX_DEFAULT as u8,
};

/// What flags say; `None`: nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(missing_docs, reason = "fields of Speculation")]
pub struct Given {
    pub mtp_tokens: Option<u8>,
    pub suffix_min: Option<u8>,
    pub suffix_max: Option<u8>,
    pub suffix_tokens: Option<u8>,
    pub policy: Option<WindowPolicy>,
    pub window_initial: Option<u8>,
    pub window_min: Option<u8>,
    pub window_max: Option<u8>,
}

impl Given {
    /// These settings with what is given in their place. What is not given makes room for what is.
    ///
    /// # Errors
    /// Given values that contradict each other, or a limit that they meet.
    pub fn over(&self, base: Speculation) -> Result<Speculation, String> {
        if let (Some(min), Some(max)) = (self.suffix_min, self.suffix_max)
            && min > max
        {
            return Err(format!("--suffix-min {min} is above --suffix-max {max}"));
        }
        let suffix_min = self.suffix_min.unwrap_or(base.suffix_min.min(self.suffix_max.unwrap_or(u8::MAX)));
        let suffix_max = self.suffix_max.unwrap_or(base.suffix_max.max(suffix_min));
        let window_max = self.window_max.unwrap_or(base.window_max);
        let window_min = self.window_min.unwrap_or(base.window_min.min(window_max));
        if window_min > window_max {
            return Err(format!("--window-min {window_min} is above --window-max {window_max}"));
        }
        let window_initial = self.window_initial.unwrap_or(base.window_initial.clamp(window_min, window_max));
        if !(window_min..=window_max).contains(&window_initial) {
            return Err(format!("--window-initial {window_initial} is outside {window_min}..={window_max}"));
        }
        Ok(Speculation {
            strategy: base.strategy,
            mtp_tokens: self.mtp_tokens.unwrap_or(base.mtp_tokens),
            suffix_min,
            suffix_max,
            suffix_tokens: self.suffix_tokens.unwrap_or(base.suffix_tokens.min(window_max)),
            policy: self.policy.unwrap_or(base.policy),
            window_initial,
            window_min,
            window_max,
        })
    }
}

/// Settings by strategy. `off` is always there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Menu {
    /// In the order of [`Strategy::ALL`].
    entries: [Option<Speculation>; Strategy::ALL.len()],
    /// What to use where nobody says; `None`: the best that the model can.
    pub default: Option<Strategy>,
}

impl Menu {
    /// Every strategy, with the same settings.
    pub fn of(settings: Speculation) -> Self {
        let entries = Strategy::ALL.map(|strategy| Some(Speculation { strategy, ..settings }));
        Self { entries, default: None }
    }

    /// Settings of a strategy, if it is offered.
    pub fn get(&self, strategy: Strategy) -> Option<Speculation> {
        self.entries.into_iter().flatten().find(|entry| entry.strategy == strategy)
    }

    /// The strategies that are offered.
    pub fn strategies(&self) -> impl Iterator<Item = Strategy> {
        self.entries.into_iter().flatten().map(|entry| entry.strategy)
    }

    /// The largest window of any strategy.
    pub fn window_max(&self) -> u8 {
        self.entries.iter().flatten().map(|entry| entry.window_max).max().unwrap_or_default()
    }

    /// The menu with what flags say in its place.
    ///
    /// # Errors
    /// See [`Given::over`].
    pub fn under(self, given: &Given) -> Result<Self, String> {
        let mut out = self;
        for entry in out.entries.iter_mut().flatten() {
            *entry = given.over(*entry)?;
        }
        Ok(out)
    }
}

/// The menu of a package, and a line for everything in it that was brought within what this engine does. `None`: the
/// package says nothing about drafting.
pub fn of_package(manifest: &Manifest) -> Option<(Menu, Vec<String>)> {
    let Speculative { default, proposers, strategies, .. } = check::speculative(manifest)?;
    let mut notes = Vec::new();
    let mut menu = Menu { entries: [None; Strategy::ALL.len()], default: None };
    for strategy in [Strategy::Mtp, Strategy::NgramSuffix, Strategy::MtpSuffix] {
        // Of several that are the same to us, the one whose id is the strategy's own name.
        let same = |(_, entry): &(&str, &Entry)| runs_as(entry, proposers) == Some(strategy);
        let found = check::find(strategies, strategy.name()).filter(|entry| same(&("", entry)));
        let Some((id, entry)) = found.map(|entry| (strategy.name(), entry)).or_else(|| strategies.iter().find(same))
        else {
            continue;
        };
        menu.entries[strategy as usize] = Some(settings(strategy, id, entry, proposers, &mut notes));
    }
    for (id, entry) in strategies.iter().filter(|(_, entry)| runs_as(entry, proposers).is_none()) {
        notes.push(format!("strategy {id} of type {} is not one of this engine's: not offered", entry.kind));
    }
    let chosen = match default.as_str() {
        off if OFF.contains(&off) => Some(Strategy::Off),
        id => check::find(strategies, id).and_then(|entry| runs_as(entry, proposers)),
    };
    if chosen.is_none() {
        notes.push(format!("the default strategy {default} is not one of this engine's: off instead"));
    }
    let chosen = chosen.unwrap_or(Strategy::Off);
    let plain = menu.get(chosen).unwrap_or(BUILT_IN);
    menu.entries[Strategy::Off as usize] = Some(Speculation { strategy: Strategy::Off, ..plain });
    menu.default = Some(chosen);
    Some((menu, notes))
}

/// What a strategy of a package is here.
fn runs_as(entry: &Entry, proposers: &Named<Proposer>) -> Option<Strategy> {
    match entry.kind.as_str() {
        "native-mtp" => Some(Strategy::Mtp),
        "ngram-suffix" => Some(Strategy::NgramSuffix),
        "composite" => {
            let extender = proposers.get(entry.extender.as_deref()?)?;
            (extender.kind == "ngram-suffix").then_some(Strategy::MtpSuffix)
        }
        _ => None,
    }
}

fn settings(
    strategy: Strategy,
    id: &str,
    entry: &Entry,
    proposers: &Named<Proposer>,
    notes: &mut Vec<String>,
) -> Speculation {
    let named = |name: &Option<String>| proposers.get(name.as_deref()?);
    let (mtp, suffix) = match strategy {
        Strategy::Mtp => (named(&entry.proposer), None),
        Strategy::NgramSuffix => (None, named(&entry.proposer)),
        _ => (named(&entry.primary), named(&entry.extender)),
    };
    let mut within = |what: &str, found: Option<u32>, most: usize, absent: u8| match found {
        None => absent,
        Some(n) if n as usize <= most => n as u8,
        Some(n) => {
            notes.push(format!("strategy {id}: {what} {n} is beyond what is done here: {most} instead"));
            most as u8
        }
    };
    let base = BUILT_IN;
    let mtp_tokens = mtp.and_then(|p| p.max_draft_tokens);
    let mtp_tokens = within("max_draft_tokens", mtp_tokens, MTP_TOKENS_MAX, base.mtp_tokens);
    let number = |of: fn(&Proposer) -> Option<u32>| suffix.and_then(of);
    let suffix_min = within("ngram_min", number(|p| p.ngram_min), SUFFIX_MAX_DEFAULT, base.suffix_min);
    let suffix_max = within("ngram_max", number(|p| p.ngram_max), SUFFIX_MAX_DEFAULT, base.suffix_max);
    let tail = entry.extension_policy.as_ref().map(|policy| policy.max_tokens);
    let tail = number(|p| p.max_proposal_tokens).map(|n| n.min(tail.unwrap_or(u32::MAX))).or(tail);
    let suffix_tokens = within("max_proposal_tokens", tail, WINDOW_MAX, base.suffix_tokens);
    let window = entry.window_policy.as_ref();
    let width = |of: fn(&engine_io::package::manifest::WindowPolicy) -> Option<u32>| window.and_then(of);
    let window_max = within("max_window", width(|w| w.max_window), WINDOW_MAX, base.window_max);
    let window_min = within("min_window", width(|w| w.min_window), WINDOW_MAX, base.window_min.min(window_max));
    let first = base.window_initial.clamp(window_min, window_max.max(window_min));
    let window_initial = within("initial_window", width(|w| w.initial_window), WINDOW_MAX, first);
    // A least or first window beyond a largest one that is not stated moves that.
    let window_max = window_max.max(window_min).max(window_initial);
    let policy = match window.map(|w| w.default.as_str()) {
        None | Some("adaptive") => WindowPolicy::Adaptive,
        Some("fixed") => WindowPolicy::Fixed,
        Some(other) => {
            notes.push(format!("strategy {id}: window policy {other} is not one of this engine's: adaptive instead"));
            WindowPolicy::Adaptive
        }
    };
    if let Some(depth) = width(|w| w.pipeline_depth).filter(|depth| *depth > 1) {
        notes.push(format!("strategy {id}: pipeline_depth {depth}: 1 instead"));
    }
    Speculation {
        strategy,
        mtp_tokens,
        suffix_min,
        suffix_max,
        suffix_tokens: suffix_tokens.min(window_max),
        policy,
        window_initial,
        window_min,
        window_max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(speculative: serde_json::Value) -> Manifest {
        let json = serde_json::json!({"schema_version": 1, "generation": {"speculative_decoding": speculative}});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn flags_go_over_settings_and_move_what_is_not_given() {
        let none = Given::default();
        let built_in = none.over(BUILT_IN).unwrap();
        assert_eq!((built_in.suffix_tokens, built_in.window_initial, built_in.window_max), (32, 16, 32));
        let narrow = Given { window_max: Some(7), ..none }.over(BUILT_IN).unwrap();
        assert_eq!((narrow.window_min, narrow.window_initial, narrow.suffix_tokens), (1, 7, 7));
        let base = Speculation { suffix_min: 5, suffix_max: 32, ..BUILT_IN };
        let long = Given { suffix_min: Some(40), ..none }.over(base).unwrap();
        assert_eq!((long.suffix_min, long.suffix_max), (40, 40));
        let short = Given { suffix_max: Some(4), ..none }.over(base).unwrap();
        assert_eq!((short.suffix_min, short.suffix_max), (4, 4));
        for (given, word) in [
            (Given { suffix_min: Some(9), suffix_max: Some(8), ..none }, "--suffix-max 8"),
            (Given { window_min: Some(33), ..none }, "--window-max 32"),
            (Given { window_initial: Some(33), ..none }, "1..=32"),
        ] {
            assert!(given.over(BUILT_IN).unwrap_err().contains(word), "{given:?}");
        }
    }

    #[test]
    fn a_package_decides_what_is_offered_and_how() {
        let (menu, notes) = of_package(&manifest(serde_json::json!({
            "default": "native-mtp-n1",
            "proposers": {
                "head": {"type": "native-mtp", "prediction_depth": 1, "layer_indices": [4], "max_draft_tokens": 2},
                "own": {"type": "ngram-suffix", "ngram_min": 5, "ngram_max": 32, "max_proposal_tokens": 48},
            },
            "strategies": {
                "native-mtp-n1": {"type": "native-mtp", "proposer": "head"},
                "tail": {"type": "composite", "primary": "head", "extender": "own",
                    "extension_policy": {"max_tokens": 20},
                    "window_policy": {"default": "fixed", "initial_window": 16, "min_window": 2, "max_window": 24}},
            },
        })))
        .unwrap();
        assert_eq!(notes, Vec::<String>::new());
        assert_eq!(menu.default, Some(Strategy::Mtp));
        assert_eq!(menu.strategies().collect::<Vec<_>>(), [Strategy::Off, Strategy::Mtp, Strategy::MtpSuffix]);
        let mtp = menu.get(Strategy::Mtp).unwrap();
        assert_eq!((mtp.mtp_tokens, mtp.policy, mtp.window_max), (2, WindowPolicy::Adaptive, 32));
        let tail = menu.get(Strategy::MtpSuffix).unwrap();
        let expected = Speculation {
            strategy: Strategy::MtpSuffix,
            mtp_tokens: 2,
            suffix_min: 5,
            suffix_max: 32,
            suffix_tokens: 20,
            policy: WindowPolicy::Fixed,
            window_initial: 16,
            window_min: 2,
            window_max: 24,
        };
        assert_eq!(tail, expected);
        assert_eq!(menu.window_max(), 32);
        let under = menu.under(&Given { mtp_tokens: Some(7), ..Given::default() }).unwrap();
        assert_eq!(under.get(Strategy::MtpSuffix), Some(Speculation { mtp_tokens: 7, ..expected }));
        assert!(of_package(&Manifest::default()).is_none());
    }

    #[test]
    fn what_is_beyond_this_engine_is_told() {
        let (menu, notes) = of_package(&manifest(serde_json::json!({
            "default": "ngram-cache",
            "proposers": {
                "own": {"type": "ngram-suffix", "ngram_min": 3, "ngram_max": 64, "max_proposal_tokens": 500},
                "old": {"type": "ngram-cache", "ngram_min": 1, "ngram_max": 4, "max_proposal_tokens": 8},
            },
            "strategies": {
                "ngram-cache": {"type": "ngram-cache", "proposer": "old"},
                "ngram-suffix": {"type": "ngram-suffix", "proposer": "own",
                    "window_policy": {"default": "expected", "max_window": 100, "pipeline_depth": 2}},
            },
        })))
        .unwrap();
        assert_eq!(menu.default, Some(Strategy::Off));
        let suffix = menu.get(Strategy::NgramSuffix).unwrap();
        assert_eq!((suffix.suffix_tokens, suffix.window_max, suffix.window_initial), (63, 63, 16));
        let all = notes.join("\n");
        for word in ["500", "max_window 100", "expected", "pipeline_depth 2", "ngram-cache of type", "default strategy"]
        {
            assert!(all.contains(word), "{all} does not say {word}");
        }
        assert_eq!(notes.len(), 6);
    }

    #[test]
    fn off_is_a_default_too() {
        let json = serde_json::json!({"default": "disabled", "strategies": {"mtp": {"type": "native-mtp"}}});
        let (menu, _) = of_package(&manifest(json)).unwrap();
        assert_eq!(menu.default, Some(Strategy::Off));
    }
}
