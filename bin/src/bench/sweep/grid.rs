//! What a sweep tries: the values of every axis, and the cells that they make.
//!
//! Cells that draft alike are one: a chain deeper than the window is as deep as the window, a tail longer than the window
//! as long as it, and a strategy with one proposer has no use for a window wider than that proposer drafts.

use engine::api::{Speculation, Strategy, WindowPolicy};
use engine::limits::{MTP_TOKENS_MAX, SUFFIX_MAX_DEFAULT, SUFFIX_MIN_DEFAULT, WINDOW_MAX};
use serde::{Deserialize, Serialize};

use crate::menu::{BUILT_IN, Given};

/// Values of every axis, in tokens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grid {
    /// Who drafts.
    pub strategies: Vec<Strategy>,
    /// Drafts of the MTP block.
    pub mtp_tokens: Vec<u8>,
    /// Shortest suffix match that drafts.
    pub suffix_min: Vec<u8>,
    /// Longest that is looked for.
    pub suffix_max: Vec<u8>,
    /// Longest suffix draft.
    pub suffix_tokens: Vec<u8>,
    /// Most drafts of a window; of a fixed one, all that it has.
    pub window: Vec<u8>,
    /// Who decides how many there are.
    pub policy: Vec<WindowPolicy>,
}

impl Default for Grid {
    fn default() -> Self {
        Self {
            strategies: vec![Strategy::Mtp, Strategy::NgramSuffix, Strategy::MtpSuffix],
            mtp_tokens: vec![1, 3, 5, 7],
            suffix_min: vec![3, 5, 8],
            suffix_max: vec![16, 32, 64],
            suffix_tokens: vec![8, 16, 32, 48],
            window: vec![4, 8, 16, 32],
            policy: vec![WindowPolicy::Fixed, WindowPolicy::Adaptive],
        }
    }
}

/// An axis with its values, as a flag has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Axis {
    /// Of numbers.
    Numbers(Number, Vec<u8>),
    /// Of policies.
    Policy(Vec<WindowPolicy>),
}

/// The axes of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "fields of Grid")]
pub enum Number {
    MtpTokens,
    SuffixMin,
    SuffixMax,
    SuffixTokens,
    Window,
}

/// Name, least and greatest value of each.
const NUMBERS: [(&str, Number, usize, usize); 5] = [
    ("mtp-tokens", Number::MtpTokens, 1, MTP_TOKENS_MAX),
    ("suffix-min", Number::SuffixMin, SUFFIX_MIN_DEFAULT, SUFFIX_MAX_DEFAULT),
    ("suffix-max", Number::SuffixMax, SUFFIX_MIN_DEFAULT, SUFFIX_MAX_DEFAULT),
    ("suffix-tokens", Number::SuffixTokens, 1, WINDOW_MAX),
    ("window", Number::Window, 1, WINDOW_MAX),
];

impl Axis {
    /// Reads `NAME=VALUE,..`.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let names = || NUMBERS.map(|row| row.0).join(", ");
        let (name, values) =
            text.split_once('=').ok_or_else(|| format!("expected NAME=VALUE,.. with NAME of {}, policy", names()))?;
        let values: Vec<&str> = values.split(',').collect();
        if let Some(twice) = values.iter().enumerate().find(|(i, value)| values[..*i].contains(value)) {
            return Err(format!("{name} has {} twice", twice.1));
        }
        if name == "policy" {
            let policy = |value: &&str| match *value {
                "fixed" => Ok(WindowPolicy::Fixed),
                "adaptive" => Ok(WindowPolicy::Adaptive),
                other => Err(format!("policy is {other:?}, expected fixed or adaptive")),
            };
            return Ok(Self::Policy(values.iter().map(policy).collect::<Result<_, _>>()?));
        }
        let row = NUMBERS.into_iter().find(|row| row.0 == name);
        let (_, axis, low, high) = row.ok_or_else(|| format!("{name} is no axis; there are {}, policy", names()))?;
        let number = |value: &&str| match value.parse::<usize>() {
            Ok(n) if (low..=high).contains(&n) => Ok(n as u8),
            _ => Err(format!("{name} is {value:?}, expected a number from {low} to {high}")),
        };
        Ok(Self::Numbers(axis, values.iter().map(number).collect::<Result<_, _>>()?))
    }
}

impl Grid {
    /// With the values of an axis in the place of its own.
    pub fn set(&mut self, axis: &Axis) {
        match axis {
            Axis::Numbers(number, values) => self.numbers(*number).clone_from(values),
            Axis::Policy(values) => self.policy.clone_from(values),
        }
    }

    fn numbers(&mut self, number: Number) -> &mut Vec<u8> {
        match number {
            Number::MtpTokens => &mut self.mtp_tokens,
            Number::SuffixMin => &mut self.suffix_min,
            Number::SuffixMax => &mut self.suffix_max,
            Number::SuffixTokens => &mut self.suffix_tokens,
            Number::Window => &mut self.window,
        }
    }

    /// With what flags fix: one value where an axis had several.
    ///
    /// # Errors
    /// A flag that has no axis.
    pub fn fix(&mut self, given: &Given) -> Result<(), String> {
        if given.window_initial.is_some() || given.window_min.is_some() {
            return Err("--window-initial and --window-min are no axes of a sweep: a fixed window is as wide as its \
                        greatest width, an adaptive one begins with at most 16; give --axis window=N"
                .to_owned());
        }
        for (values, fixed) in [
            (&mut self.mtp_tokens, given.mtp_tokens),
            (&mut self.suffix_min, given.suffix_min),
            (&mut self.suffix_max, given.suffix_max),
            (&mut self.suffix_tokens, given.suffix_tokens),
            (&mut self.window, given.window_max),
        ] {
            if let Some(fixed) = fixed {
                *values = vec![fixed];
            }
        }
        if let Some(policy) = given.policy {
            self.policy = vec![policy];
        }
        Ok(())
    }

    /// The cells, by strategy, each once.
    pub fn cells(&self) -> Vec<Speculation> {
        let mut out: Vec<Speculation> = Vec::new();
        for &strategy in &self.strategies {
            for &policy in &self.policy {
                for &window in &self.window {
                    for &mtp in &self.mtp_tokens {
                        for &tail in &self.suffix_tokens {
                            self.matches(
                                Speculation { mtp_tokens: mtp, suffix_tokens: tail, ..of(strategy, policy, window) },
                                &mut out,
                            );
                        }
                    }
                }
            }
        }
        out
    }

    fn matches(&self, cell: Speculation, out: &mut Vec<Speculation>) {
        for &suffix_min in &self.suffix_min {
            for &suffix_max in self.suffix_max.iter().filter(|max| **max >= suffix_min) {
                let cell = plain(Speculation { suffix_min, suffix_max, ..cell });
                let idle = cell.strategy.uses_mtp() && cell.mtp_tokens == 0
                    || cell.strategy.uses_suffix() && cell.suffix_tokens == 0;
                if !idle && !out.contains(&cell) {
                    out.push(cell);
                }
            }
        }
    }
}

fn of(strategy: Strategy, policy: WindowPolicy, window: u8) -> Speculation {
    Speculation { strategy, policy, window_max: window, ..BUILT_IN }
}

/// The one way to write down a cell.
fn plain(cell: Speculation) -> Speculation {
    let Speculation { strategy, policy, window_max, .. } = cell;
    let (mtp, tail) = (cell.mtp_tokens.min(window_max), cell.suffix_tokens.min(window_max));
    let window = match (strategy.uses_mtp(), strategy.uses_suffix()) {
        (true, false) => mtp,
        (false, true) => tail,
        _ => window_max,
    };
    let initial = match policy {
        WindowPolicy::Fixed => window,
        WindowPolicy::Adaptive => window.min(BUILT_IN.window_initial),
    };
    let base = if strategy.uses_suffix() { cell } else { BUILT_IN };
    Speculation {
        strategy,
        mtp_tokens: if strategy.uses_mtp() { mtp } else { BUILT_IN.mtp_tokens },
        suffix_min: base.suffix_min,
        suffix_max: base.suffix_max,
        suffix_tokens: if strategy.uses_suffix() { tail } else { BUILT_IN.suffix_tokens.min(window) },
        policy,
        window_initial: initial,
        window_min: BUILT_IN.window_min.min(window),
        window_max: window,
    }
}

/// A cell in a few letters: who drafts, m MTP drafts, n the lengths of matches, t the longest tail, w the window.
pub fn label(cell: &Speculation) -> String {
    use std::fmt::Write as _;
    let mut out = cell.strategy.name().to_owned();
    if cell.strategy == Strategy::Off {
        return out;
    }
    if cell.strategy.uses_mtp() {
        _ = write!(out, " m{}", cell.mtp_tokens);
    }
    if cell.strategy.uses_suffix() {
        _ = write!(out, " n{}-{} t{}", cell.suffix_min, cell.suffix_max, cell.suffix_tokens);
    }
    let policy = if cell.policy == WindowPolicy::Fixed { "fixed" } else { "adaptive" };
    _ = write!(out, " w{} {policy}", cell.window_max);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_draft_alike_are_one() {
        let cells = Grid::default().cells();
        let of = |strategy| cells.iter().filter(|cell| cell.strategy == strategy).count();
        // Chains of 1, 3, 4, 5 and 7: the narrowest window cuts 5 and 7 to 4.
        assert_eq!(of(Strategy::Mtp), 5 * 2);
        // Nine pairs of matches, and tails of 4, 8, 16 and 32.
        assert_eq!(of(Strategy::NgramSuffix), 9 * 4 * 2);
        // Window 4: chains 1, 3, 4, tail 4. Wider ones have four chains; 8 has one tail, 16 two, 32 three.
        assert_eq!(of(Strategy::MtpSuffix), 9 * (3 + 4 + 8 + 12) * 2);
        for cell in &cells {
            assert!(cell.window_min <= cell.window_initial && cell.window_initial <= cell.window_max, "{cell:?}");
            assert!(cell.suffix_min <= cell.suffix_max && cell.suffix_tokens <= cell.window_max, "{cell:?}");
            assert_eq!(cells.iter().filter(|other| label(other) == label(cell)).count(), 1, "{}", label(cell));
        }
    }

    #[test]
    fn matches_that_contradict_each_other_are_no_cells() {
        let mut grid = Grid { strategies: vec![Strategy::NgramSuffix], ..Grid::default() };
        for text in ["suffix-min=3,20", "suffix-max=16", "suffix-tokens=8", "window=8", "policy=fixed"] {
            grid.set(&Axis::parse(text).unwrap());
        }
        let cells = grid.cells();
        assert_eq!(cells.iter().map(label).collect::<Vec<_>>(), ["ngram-suffix n3-16 t8 w8 fixed"]);
        grid.fix(&Given { suffix_min: Some(5), window_max: Some(4), ..Given::default() }).unwrap();
        assert_eq!(grid.cells().iter().map(label).collect::<Vec<_>>(), ["ngram-suffix n5-16 t4 w4 fixed"]);
        assert!(grid.fix(&Given { window_min: Some(2), ..Given::default() }).is_err());
    }

    #[test]
    fn axes_are_read_from_flags() {
        assert_eq!(Axis::parse("window=4,8"), Ok(Axis::Numbers(Number::Window, vec![4, 8])));
        assert_eq!(Axis::parse("policy=adaptive"), Ok(Axis::Policy(vec![WindowPolicy::Adaptive])));
        for (text, word) in [
            ("window", "NAME=VALUE"),
            ("windows=4", "windows is no axis"),
            ("window=", "from 1 to 63"),
            ("window=64", "from 1 to 63"),
            ("mtp-tokens=0", "from 1 to 15"),
            ("suffix-min=2", "from 3 to 64"),
            ("policy=best", "fixed or adaptive"),
            ("window=4,4", "4 twice"),
        ] {
            let error = Axis::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
