//! The `speculative` object of a request: read, completed with the server's defaults, clamped once, reported.

use engine::api::{Speculation, Strategy, WindowPolicy};
use engine::limits::{MTP_TOKENS_MAX, SUFFIX_MAX_DEFAULT, SUFFIX_MIN_DEFAULT, WINDOW_MAX};
use serde_json::{Map, Value, json};

use crate::menu::Menu;
use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;

/// Whether requests may draft with an MTP block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MtpOffer {
    /// They may.
    Ready,
    /// There is no usable block.
    Absent,
    /// One is announced and cannot be used.
    Broken,
    /// There is one, but it does not draft what the model chooses.
    Unfit,
}

impl MtpOffer {
    /// Why not, in words for clients: no paths.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Ready => None,
            Self::Absent => Some("the model has no MTP block"),
            Self::Broken => Some(
                "the model announces an MTP block that is absent, incomplete or of another layout: the server's log says \
                 which",
            ),
            Self::Unfit => {
                Some("the MTP block does not fit the model: the check at start found almost no draft accepted")
            }
        }
    }

    /// Label of the metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Absent => "absent",
            Self::Broken => "broken",
            Self::Unfit => "unfit",
        }
    }
}

/// What the server offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpecConfig {
    /// Used where the request says nothing.
    pub default: Speculation,
    /// What is used where the request names a strategy and says nothing else. Widths in it are the most that a request
    /// gets.
    pub menu: Menu,
    /// Whether the MTP block may draft.
    pub mtp: MtpOffer,
}

impl SpecConfig {
    /// Why a strategy cannot be had.
    fn refusal(&self, strategy: Strategy) -> Option<&'static str> {
        let absent = self.menu.get(strategy).is_none().then_some("the model's package does not have it");
        absent.or_else(|| self.mtp.reason().filter(|_| strategy.uses_mtp()))
    }

    /// Names of the strategies this model can run.
    pub(crate) fn strategies(&self) -> Vec<&'static str> {
        Strategy::ALL.into_iter().filter(|s| self.refusal(*s).is_none()).map(Strategy::name).collect()
    }
}

/// Why a wish is cut at admission.
pub(crate) const CLAMP_REASONS: [&str; 4] = ["server_limit", "head_limit", "range", "unavailable"];

/// What a request gets.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Plan {
    pub requested: Option<Value>,
    pub effective: Speculation,
    mtp: MtpOffer,
    fallback: bool,
    clamps: Vec<Value>,
}

impl Plan {
    /// Reads the `speculative` field.
    ///
    /// # Errors
    /// 400 for unknown names, values out of the stated ranges, broken orders, and a strategy that is not available.
    pub(crate) fn read(body: &Fields<'_, '_>, config: &SpecConfig) -> Result<Self, ApiError> {
        let Some(map) = body.object("speculative")? else {
            let (effective, mtp) = (config.default, config.mtp);
            return Ok(Self { requested: None, effective, mtp, fallback: false, clamps: Vec::new() });
        };
        let fields = Fields::nested(map, "speculative.");
        fields.only(&[
            "strategy",
            "mtp_tokens",
            "suffix_min",
            "suffix_max",
            "suffix_tokens",
            "window",
            "on_unavailable",
        ])?;
        let fallback = match fields.string("on_unavailable")? {
            None | Some("error") => false,
            Some("fallback") => true,
            Some(other) => return Err(unknown("speculative.on_unavailable", other, "error, fallback")),
        };
        let mut plan = Self {
            requested: Some(Value::Object(map.clone())),
            effective: config.default,
            mtp: config.mtp,
            fallback,
            clamps: Vec::new(),
        };
        plan.read_strategy(&fields, config)?;
        plan.read_window(&fields)?;
        plan.read_proposers(&fields)?;
        Ok(plan)
    }

    fn read_strategy(&mut self, fields: &Fields<'_, '_>, config: &SpecConfig) -> Result<(), ApiError> {
        let wanted = match fields.string("strategy")? {
            None | Some("default" | "auto") => return Ok(()),
            Some(name) => Strategy::parse(name)
                .ok_or_else(|| unknown("speculative.strategy", name, "auto, off, mtp, ngram-suffix, mtp-suffix"))?,
        };
        let settings = |strategy| config.menu.get(strategy).unwrap_or(Speculation { strategy, ..config.default });
        let Some(reason) = config.refusal(wanted) else {
            self.effective = settings(wanted);
            return Ok(());
        };
        if !self.fallback {
            return Err(ApiError::strategy_unavailable(format!(
                "strategy {} is not available: {reason}; available are {}",
                wanted.name(),
                config.strategies().join(", ")
            )));
        }
        let instead = Some(wanted.without_mtp()).filter(|strategy| config.refusal(*strategy).is_none());
        self.effective = settings(instead.unwrap_or(Strategy::Off));
        self.clamps.push(json!({"field": "strategy", "requested": wanted.name(),
            "effective": self.effective.strategy.name(), "reason": "unavailable"}));
        Ok(())
    }

    fn read_window(&mut self, fields: &Fields<'_, '_>) -> Result<(), ApiError> {
        let default = self.effective;
        let empty = Map::new();
        let window = Fields::nested(fields.object("window")?.unwrap_or(&empty), "speculative.window.");
        window.only(&["policy", "initial", "min", "max"])?;
        self.effective.policy = match window.string("policy")? {
            None => self.effective.policy,
            Some("fixed") => WindowPolicy::Fixed,
            Some("adaptive") => WindowPolicy::Adaptive,
            Some(other) => return Err(unknown("speculative.window.policy", other, "fixed, adaptive")),
        };
        let limit = i64::from(default.window_max);
        let (initial, min, max) =
            (window.integer("initial", 0..=1024)?, window.integer("min", 0..=1024)?, window.integer("max", 0..=1024)?);
        for (low, low_name, high, high_name) in
            [(min, "min", initial, "initial"), (initial, "initial", max, "max"), (min, "min", max, "max")]
        {
            if let (Some(a), Some(b)) = (low, high)
                && a > b
            {
                let message = format!("{low_name} {a} is above {high_name} {b}");
                return Err(ApiError::invalid_value(&window.path(low_name), message));
            }
        }
        let mut clamp = |name: &str, asked: Option<i64>, default: i64| {
            let Some(asked) = asked else { return default };
            if asked > limit {
                self.clamps.push(json!({"field": format!("window.{name}"), "requested": asked, "effective": limit,
                    "reason": "server_limit"}));
            }
            asked.min(limit)
        };
        let max_given = clamp("max", max, limit);
        let min_given = clamp("min", min, i64::from(default.window_min));
        let initial_given = clamp("initial", initial, i64::from(default.window_initial));
        // A value that was not given follows those that were: min(1, max), initial and max around what is there.
        let max = if max.is_some() { max_given } else { max_given.max(min_given) };
        let min =
            if min.is_some() { min_given } else { min_given.min(max).min(initial.map_or(max, |_| initial_given)) };
        let initial = initial_given.clamp(min, max);
        (self.effective.window_min, self.effective.window_initial, self.effective.window_max) =
            (min as u8, initial as u8, max as u8);
        Ok(())
    }

    fn read_proposers(&mut self, fields: &Fields<'_, '_>) -> Result<(), ApiError> {
        if let Some(asked) = fields.integer("mtp_tokens", 0..=1024)? {
            self.effective.mtp_tokens = self.clamp("mtp_tokens", asked, 0, MTP_TOKENS_MAX, "head_limit");
        }
        let (min, max) = (fields.integer("suffix_min", 1..=1024)?, fields.integer("suffix_max", 1..=1024)?);
        if let (Some(a), Some(b)) = (min, max)
            && a > b
        {
            let message = format!("suffix_min {a} is above suffix_max {b}");
            return Err(ApiError::invalid_value("speculative.suffix_min", message));
        }
        let (low, high) = (SUFFIX_MIN_DEFAULT, SUFFIX_MAX_DEFAULT);
        if let Some(asked) = min {
            self.effective.suffix_min = self.clamp("suffix_min", asked, low, high, "range");
        }
        if let Some(asked) = max {
            self.effective.suffix_max = self.clamp("suffix_max", asked, low, high, "range");
        }
        // One of the pair given beyond the other's default moves the default.
        match (min, max) {
            (Some(_), None) => self.effective.suffix_max = self.effective.suffix_max.max(self.effective.suffix_min),
            (None, Some(_)) => self.effective.suffix_min = self.effective.suffix_min.min(self.effective.suffix_max),
            _ => {}
        }
        if let Some(asked) = fields.integer("suffix_tokens", 0..=1024)? {
            self.effective.suffix_tokens = self.clamp("suffix_tokens", asked, 0, WINDOW_MAX, "range");
        }
        Ok(())
    }

    fn clamp(&mut self, field: &str, asked: i64, low: usize, high: usize, reason: &str) -> u8 {
        let effective = asked.clamp(low as i64, high as i64);
        if effective != asked {
            self.clamps.push(json!({"field": field, "requested": asked, "effective": effective, "reason": reason}));
        }
        effective as u8
    }

    /// The effective settings, in the request's own shape.
    pub(crate) fn effective_json(&self) -> Value {
        let e = &self.effective;
        let policy = match e.policy {
            WindowPolicy::Fixed => "fixed",
            WindowPolicy::Adaptive => "adaptive",
        };
        json!({
            "strategy": e.strategy.name(),
            "mtp_tokens": e.mtp_tokens,
            "suffix_min": e.suffix_min,
            "suffix_max": e.suffix_max,
            "suffix_tokens": e.suffix_tokens,
            "window": {"policy": policy, "initial": e.window_initial, "min": e.window_min, "max": e.window_max},
            "on_unavailable": if self.fallback { "fallback" } else { "error" },
        })
    }

    /// Why the MTP block does not draft, or null.
    pub(crate) fn mtp_unavailable_json(&self) -> Value {
        self.mtp.reason().into()
    }

    /// Why each wish was cut.
    pub(crate) fn clamp_reasons(&self) -> impl Iterator<Item = &'static str> + '_ {
        let known = |clamp: &Value| CLAMP_REASONS.into_iter().find(|reason| clamp["reason"] == *reason);
        self.clamps.iter().filter_map(known)
    }

    pub(crate) fn clamps_json(&self) -> Value {
        Value::Array(self.clamps.clone())
    }
}

fn unknown(param: &str, found: &str, expected: &str) -> ApiError {
    ApiError::invalid_value(param, format!("{} is not one of {expected}", quote(found)))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    const SETTINGS: Speculation =
        Speculation { strategy: Strategy::MtpSuffix, suffix_tokens: 32, ..crate::menu::BUILT_IN };

    static CONFIG: LazyLock<SpecConfig> =
        LazyLock::new(|| SpecConfig { default: SETTINGS, menu: Menu::of(SETTINGS), mtp: MtpOffer::Ready });

    fn read(spec: Value, config: &SpecConfig) -> Result<Plan, ApiError> {
        let body = Map::from_iter([("speculative".to_owned(), spec)]);
        Plan::read(&Fields::body(&body), config)
    }

    #[test]
    fn defaults_and_clamps() {
        assert_eq!(read(Value::Null, &CONFIG).unwrap().effective, SETTINGS);
        let plan = read(
            json!({"mtp_tokens": 20, "suffix_max": 500, "suffix_tokens": 1024, "window": {"max": 900, "policy": "fixed"}}),
            &CONFIG,
        )
        .unwrap();
        let fields: Vec<&str> = plan.clamps.iter().map(|c| c["field"].as_str().unwrap()).collect();
        assert_eq!(fields, ["window.max", "mtp_tokens", "suffix_max", "suffix_tokens"]);
        assert_eq!(plan.clamp_reasons().count(), fields.len(), "every reason is one of the set");
        assert_eq!((plan.effective.window_max, plan.effective.mtp_tokens), (32, 15));
        let e = read(json!({"window": {"max": 0}}), &CONFIG).unwrap().effective;
        assert_eq!((e.window_min, e.window_initial, e.window_max), (0, 0, 0));
        let e = read(json!({"window": {"initial": 0}}), &CONFIG).unwrap().effective;
        assert_eq!((e.window_min, e.window_initial, e.window_max), (0, 0, 32));
        let e = read(json!({"window": {"max": 7}}), &CONFIG).unwrap().effective;
        assert_eq!((e.window_min, e.window_initial, e.window_max), (1, 7, 7));
    }

    #[test]
    fn refusals() {
        for (spec, param) in [
            (json!({"strategy": "fast"}), "speculative.strategy"),
            (json!({"strategy": 5}), "speculative.strategy"),
            (json!({"mtp_tokens": -1}), "speculative.mtp_tokens"),
            (json!({"mtp_tokens": 1.5}), "speculative.mtp_tokens"),
            (json!({"mtp_tokens": true}), "speculative.mtp_tokens"),
            (json!({"suffix_min": 9, "suffix_max": 8}), "speculative.suffix_min"),
            (json!({"window": {"min": 5, "max": 4}}), "speculative.window.min"),
            (json!({"window": {"initial": 5, "max": 4}}), "speculative.window.initial"),
            (json!({"window": {"policy": "wild"}}), "speculative.window.policy"),
            (json!({"window": {"size": 3}}), "speculative.window.size"),
            (json!({"tokens": 3}), "speculative.tokens"),
            (json!({"on_unavailable": "cry"}), "speculative.on_unavailable"),
            (json!([]), "speculative"),
        ] {
            let error = read(spec.clone(), &CONFIG).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{spec}");
        }
    }

    #[test]
    fn unavailable_strategies() {
        let mut config = *CONFIG;
        (config.mtp, config.default.strategy) = (MtpOffer::Absent, Strategy::NgramSuffix);
        let error = read(json!({"strategy": "mtp-suffix"}), &config).unwrap_err();
        assert_eq!(error.code, "strategy_unavailable");
        assert!(error.message.contains("off, ngram-suffix"));
        let plan = read(json!({"strategy": "mtp-suffix", "on_unavailable": "fallback"}), &config).unwrap();
        assert_eq!(plan.effective.strategy, Strategy::NgramSuffix);
        assert_eq!(plan.clamps[0]["reason"], "unavailable");
        let plan = read(json!({"strategy": "mtp", "on_unavailable": "fallback"}), &config).unwrap();
        assert_eq!(plan.effective.strategy, Strategy::Off);
    }
}
