//! Fields that both generation endpoints read: sampling, stopping, streaming.

use std::time::Duration;

use engine::api::{Sampling, Stop};
use engine::ids::TokenId;
use engine::step::LogitEdit;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::serve::error::ApiError;
use crate::serve::fields::{Fields, Reals, integer};
use crate::serve::info::ModelInfo;
use crate::serve::json::type_name;
use crate::serve::limits;
use crate::serve::random::Random;
use crate::serve::spec::{Plan, SpecConfig};

/// How a dialect calls what all dialects have.
pub(crate) struct Names {
    /// The token limit. Several given: the smallest holds.
    pub max_tokens: &'static [&'static str],
    /// Stop strings, and how many there may be.
    pub stop: &'static str,
    pub stop_most: usize,
    /// Options of a stream that are known; where there are none the field has no meaning.
    pub stream_options: &'static [&'static str],
}

/// Of chats and completions.
pub(crate) const OPENAI: Names = Names {
    max_tokens: &["max_tokens", "max_completion_tokens", "n_predict"],
    stop: "stop",
    stop_most: limits::STOP_STRINGS,
    stream_options: &["include_usage", "continuous_usage_stats", "include_obfuscation", "include_speculation"],
};

/// What a request may ask for here.
pub(crate) struct Offer<'a> {
    pub names: &'static Names,
    pub info: &'a ModelInfo,
    pub spec: &'a SpecConfig,
    pub slots: usize,
}

/// The common part of a generation request.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    pub stream: bool,
    pub include_usage: bool,
    pub continuous_usage: bool,
    /// Chunks say who proposed their tokens.
    pub include_speculation: bool,
    pub max_tokens: Option<u32>,
    pub n: usize,
    /// With `choice` 0.
    pub sampling: Sampling,
    pub seed: i64,
    pub stop: Stop,
    pub stop_text: Vec<String>,
    pub return_tokens: bool,
    /// Silence after which a comment is sent; `None` = never.
    pub ping: Option<Duration>,
    pub speculation: Plan,
    /// Namespace of the prefix cache; `None`: neither read nor written.
    pub cache: Option<u64>,
}

impl Params {
    /// Reads the common fields.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn read(body: &Fields<'_, '_>, offer: &Offer<'_>, random: &mut Random) -> Result<Self, ApiError> {
        body.string("model")?;
        let stream = body.boolean("stream")?.unwrap_or(false);
        let (include_usage, continuous_usage, include_speculation) = stream_options(body, stream, offer.names)?;
        let max_tokens = max_tokens(body, offer.names)?;
        let min_tokens = body.integer("min_tokens", 0..=i64::from(u32::MAX))?.unwrap_or(0) as u32;
        if max_tokens.is_some_and(|max| min_tokens > max) {
            return Err(ApiError::invalid_value("min_tokens", "it is above the token limit"));
        }
        let n_max = limits::CHOICES.min(offer.slots) as i64;
        let n = body.integer("n", 1..=n_max)?.unwrap_or(1) as usize;
        if body.integer("best_of", 1..=limits::CHOICES as i64)?.is_some_and(|best| best != n as i64) {
            return Err(ApiError::unsupported_parameter("best_of"));
        }
        let seed = match body.integer("seed", i64::MIN..=i64::MAX)? {
            None | Some(-1) => (random.next() >> 32) as i64,
            Some(seed) => seed,
        };
        let (strings, stop_text) = stop_strings(body, offer.names)?;
        let stop = Stop {
            strings,
            tokens: stop_tokens(body, offer.info.n_vocab)?,
            ignore_eos: body.boolean("ignore_eos")?.unwrap_or(false),
            min_tokens,
            include: body.boolean("include_stop_str_in_output")?.unwrap_or(false),
        };
        let ping = match body.integer("sse_ping_interval", -1..=86_400)?.unwrap_or(15) {
            -1 => None,
            seconds => Some(Duration::from_secs(seconds.max(1) as u64)),
        };
        let tokens = [body.boolean("return_tokens")?, body.boolean("return_token_ids")?];
        Ok(Self {
            stream,
            include_usage,
            continuous_usage,
            include_speculation,
            max_tokens,
            n,
            sampling: sampling(body, offer.info, seed)?,
            seed,
            stop,
            stop_text,
            return_tokens: tokens.contains(&Some(true)),
            ping,
            speculation: Plan::read(body, offer.spec)?,
            cache: cache(body)?,
        })
    }
}

/// `cache_prompt` and `cache_salt`. Requests without a salt share one namespace.
fn cache(body: &Fields<'_, '_>) -> Result<Option<u64>, ApiError> {
    let on = body.boolean("cache_prompt")?.unwrap_or(true);
    let salt = body.string("cache_salt")?.unwrap_or_default();
    if salt.len() > limits::CACHE_SALT {
        return Err(ApiError::invalid_value("cache_salt", "it is longer than 256 bytes"));
    }
    // Salts keep tenants apart, so nobody may find another's by chance.
    let namespace = match salt {
        "" => 0,
        salt => u64::from_le_bytes(Sha256::digest(salt)[..8].try_into().expect("eight of 32 bytes")),
    };
    Ok(on.then_some(namespace))
}

fn stream_options(body: &Fields<'_, '_>, stream: bool, names: &Names) -> Result<(bool, bool, bool), ApiError> {
    if names.stream_options.is_empty() {
        return Ok((false, false, false));
    }
    let Some(map) = body.object("stream_options")? else { return Ok((false, false, false)) };
    if !stream {
        return Err(ApiError::invalid_value("stream_options", "it needs stream: true"));
    }
    let options = Fields::nested(map, "stream_options.");
    options.only(names.stream_options)?;
    options.boolean("include_obfuscation")?;
    let speculation = options.boolean("include_speculation")?.unwrap_or(false);
    let usage = options.boolean("include_usage")?.unwrap_or(false);
    let continuous = options.boolean("continuous_usage_stats")?.unwrap_or(false);
    Ok((usage, continuous && usage, speculation))
}

/// Several names given: the smallest holds. `n_predict` also takes -1 for none.
fn max_tokens(body: &Fields<'_, '_>, names: &Names) -> Result<Option<u32>, ApiError> {
    let mut least: Option<u32> = None;
    for name in names.max_tokens {
        let low = if *name == "n_predict" { -1 } else { 0 };
        match body.integer(name, low..=i64::MAX)? {
            None | Some(-1) => {}
            Some(n) => {
                let n = u32::try_from(n).unwrap_or(u32::MAX);
                least = Some(least.map_or(n, |m| m.min(n)));
            }
        }
    }
    Ok(least)
}

fn sampling(body: &Fields<'_, '_>, info: &ModelInfo, seed: i64) -> Result<Sampling, ApiError> {
    let defaults = &info.sampling;
    let real = |name: &str, range: Reals, default: f32| Ok(body.number(name, range)?.map_or(default, |x| x as f32));
    let penalties = [
        ("repeat_penalty", body.number("repeat_penalty", Reals::LeftOpen(0.0, 2.0))?),
        ("repetition_penalty", body.number("repetition_penalty", Reals::LeftOpen(0.0, 2.0))?),
    ];
    if let [(_, Some(a)), (name, Some(b))] = penalties
        && a != b
    {
        return Err(ApiError::invalid_value(name, format!("{b} differs from repeat_penalty {a}")));
    }
    let repeat_penalty = penalties[0].1.or(penalties[1].1).map_or(defaults.repeat_penalty, |x| x as f32);
    let repeat_last_n = match body.integer("repeat_last_n", -1..=i64::from(u32::MAX))? {
        None => defaults.repeat_last_n,
        Some(-1) => u32::MAX,
        Some(n) => n as u32,
    };
    Ok(Sampling {
        temperature: real("temperature", Reals::Closed(0.0, 2.0), defaults.temperature)?,
        top_k: body.integer("top_k", -1..=i64::from(u32::MAX))?.map_or(defaults.top_k, |k| k.max(0) as u32),
        top_p: real("top_p", Reals::LeftOpen(0.0, 1.0), defaults.top_p)?,
        min_p: real("min_p", Reals::Closed(0.0, 1.0), defaults.min_p)?,
        repeat_penalty,
        repeat_last_n,
        presence_penalty: real("presence_penalty", Reals::Closed(-2.0, 2.0), 0.0)?,
        frequency_penalty: real("frequency_penalty", Reals::Closed(-2.0, 2.0), 0.0)?,
        logit_bias: logit_bias(body, info.n_vocab)?,
        seed: seed as u64,
        choice: 0,
    })
}

fn logit_bias(body: &Fields<'_, '_>, vocab: usize) -> Result<Vec<LogitEdit>, ApiError> {
    let pairs: Vec<(String, Value, &Value)> = match body.get("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => {
            // `parse` alone would take a sign.
            let id = |key: &String| match key.bytes().all(|b| b.is_ascii_digit()) {
                true => key.parse::<u32>().map_or(Value::String(key.clone()), Value::from),
                false => Value::String(key.clone()),
            };
            map.iter().map(|(key, value)| (format!("logit_bias.{key}"), id(key), value)).collect()
        }
        Some(Value::Array(list)) => {
            let pair = |(i, item): (usize, &'_ Value)| match item.as_array().map(Vec::as_slice) {
                Some([_, _]) => Ok((format!("logit_bias[{i}]"), item[0].clone(), i)),
                _ => Err(ApiError::invalid_type(&format!("logit_bias[{i}]"), "[id, bias]", type_name(item))),
            };
            let named = list.iter().enumerate().map(pair).collect::<Result<Vec<_>, _>>()?;
            named.into_iter().map(|(path, id, i)| (path, id, &list[i][1])).collect()
        }
        Some(other) => return Err(ApiError::invalid_type("logit_bias", "object or list", type_name(other))),
    };
    if pairs.len() > limits::LOGIT_BIAS {
        return Err(ApiError::invalid_value("logit_bias", format!("more than {} entries", limits::LOGIT_BIAS)));
    }
    let mut edits: Vec<LogitEdit> = Vec::with_capacity(pairs.len());
    for (path, id, value) in pairs {
        let token = TokenId(integer(&id, &path, 0..=vocab as i64 - 1)? as u32);
        let add = match value {
            // Null is absent, here as everywhere.
            Value::Null => continue,
            Value::Bool(false) => f32::NEG_INFINITY,
            Value::Number(n) => match n.as_f64() {
                Some(x) if (-100.0..=100.0).contains(&x) => {
                    if x <= -100.0 {
                        f32::NEG_INFINITY
                    } else {
                        x as f32
                    }
                }
                _ => return Err(ApiError::invalid_value(&path, format!("{n} is outside -100..=100"))),
            },
            other => return Err(ApiError::invalid_type(&path, "number or false", type_name(other))),
        };
        if edits.iter().any(|e| e.token == token) {
            return Err(ApiError::invalid_value(&path, "this token stands twice"));
        }
        edits.push(LogitEdit { token, repeat: 1.0, add });
    }
    Ok(edits)
}

fn stop_strings(body: &Fields<'_, '_>, names: &Names) -> Result<(Vec<Vec<u8>>, Vec<String>), ApiError> {
    let (at, most) = (names.stop, names.stop_most);
    let list: Vec<&Value> = match body.get(at) {
        None => Vec::new(),
        Some(Value::Array(list)) => list.iter().collect(),
        Some(one) => vec![one],
    };
    if list.len() > most {
        return Err(ApiError::invalid_value(at, format!("more than {most} strings")));
    }
    let mut text = Vec::with_capacity(list.len());
    for value in list {
        let Some(stop) = value.as_str() else {
            return Err(ApiError::invalid_type(at, "string or list of strings", type_name(value)));
        };
        if stop.is_empty() || stop.len() > limits::STOP_BYTES {
            return Err(ApiError::invalid_value(at, format!("each has 1 to {} bytes", limits::STOP_BYTES)));
        }
        text.push(stop.to_owned());
    }
    Ok((text.iter().map(|s| s.clone().into_bytes()).collect(), text))
}

fn stop_tokens(body: &Fields<'_, '_>, vocab: usize) -> Result<Vec<TokenId>, ApiError> {
    let Some(list) = body.list("stop_token_ids")? else { return Ok(Vec::new()) };
    if list.len() > limits::STOP_TOKENS {
        return Err(ApiError::invalid_value("stop_token_ids", format!("more than {} ids", limits::STOP_TOKENS)));
    }
    token_ids(list, "stop_token_ids", vocab)
}

/// A list of ids below `vocab`.
pub(crate) fn token_ids(list: &[Value], path: &str, vocab: usize) -> Result<Vec<TokenId>, ApiError> {
    let id = |(i, v): (usize, &Value)| integer(v, &format!("{path}[{i}]"), 0..=vocab as i64 - 1);
    list.iter().enumerate().map(|pair| id(pair).map(|n| TokenId(n as u32))).collect()
}
