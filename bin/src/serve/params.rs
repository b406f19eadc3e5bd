//! Fields that both generation endpoints read: sampling, stopping, streaming.

use std::time::Duration;

use engine::api::{Sampling, Stop};
use engine::ids::TokenId;
use engine::step::LogitEdit;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::serve::api::Api;
use crate::serve::error::{ApiError, shown};
use crate::serve::fields::{Fields, Reals, integer};
use crate::serve::info::{ModelInfo, SamplingDefaults};
use crate::serve::json::type_name;
use crate::serve::limits;
use crate::serve::random::Random;
use crate::serve::spec::{Plan, SpecConfig};

/// How a dialect calls what all dialects have.
pub(crate) struct Names {
    /// The token limit. Several given: the smallest holds.
    pub max_tokens: &'static [&'static str],
    /// Stop strings, and how many there may be whatever a flag says.
    pub stop: &'static str,
    pub stop_most: Option<usize>,
    /// Options of a stream that are known; where there are none the field has no meaning.
    pub stream_options: &'static [&'static str],
    /// Its streams have a place for how far the prompt is.
    pub progress: bool,
}

/// Of chats and completions.
pub(crate) const OPENAI: Names = Names {
    max_tokens: &["max_tokens", "max_completion_tokens", "n_predict"],
    stop: "stop",
    stop_most: None,
    stream_options: &["include_usage", "continuous_usage_stats", "include_obfuscation", "include_speculation"],
    progress: true,
};

/// What a request may ask for here.
pub(crate) struct Offer<'a> {
    pub names: &'static Names,
    pub info: &'a ModelInfo,
    pub spec: &'a SpecConfig,
    pub slots: usize,
    pub api: &'a Api,
    /// Stop strings of a request.
    pub stop_strings: usize,
    /// Answers tell how they were made.
    pub stats: bool,
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
    /// Place in the queue.
    pub priority: i8,
    /// The answer tells how it was made.
    pub stats: bool,
    /// ... and so does every chunk on the way.
    pub timings: bool,
    /// Chunks tell how far the prompt is.
    pub progress: bool,
    /// The answer begins with the prompt and its log-probabilities.
    pub echo_logprobs: bool,
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
        let (strings, stop_text) = stop_strings(body, offer.names, offer.stop_strings)?;
        let stop = Stop {
            strings,
            tokens: stop_tokens(body, offer.info.n_vocab)?,
            ignore_eos: body.boolean("ignore_eos")?.unwrap_or(false),
            min_tokens,
            include: body.boolean("include_stop_str_in_output")?.unwrap_or(false),
        };
        let ping = match body.integer("sse_ping_interval", -1..=PING_SECONDS_MAX)? {
            None => offer.api.ping,
            Some(seconds) => ping(seconds),
        };
        let tokens = [body.boolean("return_tokens")?, body.boolean("return_token_ids")?];
        Ok(Self {
            stream,
            include_usage,
            continuous_usage,
            include_speculation: include_speculation && offer.stats,
            max_tokens,
            n,
            sampling: whole_sampling(body, offer, seed)?,
            seed,
            stop,
            stop_text,
            return_tokens: tokens.contains(&Some(true)),
            ping,
            speculation: Plan::read(body, offer.spec)?,
            cache: cache(body)?,
            priority: body.integer("priority", -100..=100)?.unwrap_or(0) as i8,
            stats: offer.stats,
            timings: body.boolean("timings_per_token")?.unwrap_or(false) && offer.stats && stream,
            progress: offer.names.progress && body.boolean("return_progress")?.unwrap_or(false) && stream,
            echo_logprobs: false,
        })
    }
}

impl Params {
    /// Whether tokens may not come that an answer might need.
    pub(crate) fn bans(&self) -> bool {
        let biased = self.sampling.logit_bias.iter().any(|edit| edit.add == f32::NEG_INFINITY);
        biased || self.stop.ignore_eos || self.stop.min_tokens > 0
    }
}

/// The longest silence of a stream that may be asked for, in seconds: a day.
pub(crate) const PING_SECONDS_MAX: i64 = 86_400;

/// Silence after which a comment is sent; -1 = never.
pub(crate) fn ping(seconds: i64) -> Option<Duration> {
    (seconds >= 0).then(|| Duration::from_secs(seconds.max(1) as u64))
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

/// Fields that have a default here.
pub(crate) const SAMPLING: [&str; 11] = [
    "temperature",
    "top_k",
    "typical_p",
    "typ_p",
    "top_p",
    "min_p",
    "repeat_penalty",
    "repetition_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
];

/// The fields of [`SAMPLING`], with `defaults` for those that are absent.
///
/// # Errors
/// 400 naming the field.
pub(crate) fn sampling(
    body: &Fields<'_, '_>,
    defaults: &SamplingDefaults,
    temperature_max: f32,
) -> Result<SamplingDefaults, ApiError> {
    let real = |name: &str, range: Reals, default: f32| Ok(body.number(name, range)?.map_or(default, |x| x as f32));
    // Two names of one setting.
    let either = |first: &str, second: &str, range: Reals, default: f32| {
        let values = (body.number(first, range)?, body.number(second, range)?);
        if let (Some(a), Some(b)) = values
            && a != b
        {
            return Err(ApiError::invalid_value(second, format!("{b} differs from {first} {a}")));
        }
        Ok(values.0.or(values.1).map_or(default, |x| x as f32))
    };
    let repeat_penalty =
        either("repeat_penalty", "repetition_penalty", Reals::LeftOpen(0.0, 2.0), defaults.repeat_penalty)?;
    let repeat_last_n = match body.integer("repeat_last_n", -1..=i64::from(u32::MAX))? {
        None => defaults.repeat_last_n,
        Some(-1) => u32::MAX,
        Some(n) => n as u32,
    };
    Ok(SamplingDefaults {
        temperature: real("temperature", Reals::Closed(0.0, f64::from(temperature_max)), defaults.temperature)?,
        top_k: body.integer("top_k", -1..=i64::from(u32::MAX))?.map_or(defaults.top_k, |k| k.max(0) as u32),
        typical_p: either("typical_p", "typ_p", Reals::LeftOpen(0.0, 1.0), defaults.typical_p)?,
        top_p: real("top_p", Reals::LeftOpen(0.0, 1.0), defaults.top_p)?,
        min_p: real("min_p", Reals::Closed(0.0, 1.0), defaults.min_p)?,
        repeat_penalty,
        repeat_last_n,
        presence_penalty: real("presence_penalty", Reals::Closed(-2.0, 2.0), defaults.presence_penalty)?,
        frequency_penalty: real("frequency_penalty", Reals::Closed(-2.0, 2.0), defaults.frequency_penalty)?,
    })
}

fn whole_sampling(body: &Fields<'_, '_>, offer: &Offer<'_>, seed: i64) -> Result<Sampling, ApiError> {
    let given = sampling(body, &offer.info.sampling, offer.api.temperature_max)?;
    Ok(Sampling {
        temperature: given.temperature,
        top_k: given.top_k,
        typical_p: given.typical_p,
        top_p: given.top_p,
        min_p: given.min_p,
        repeat_penalty: given.repeat_penalty,
        repeat_last_n: given.repeat_last_n,
        presence_penalty: given.presence_penalty,
        frequency_penalty: given.frequency_penalty,
        logit_bias: logit_bias(body, offer.info.n_vocab)?,
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
            map.iter().map(|(key, value)| (format!("logit_bias.{}", shown(key)), id(key), value)).collect()
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

fn stop_strings(body: &Fields<'_, '_>, names: &Names, most: usize) -> Result<(Vec<Vec<u8>>, Vec<String>), ApiError> {
    let (at, most) = (names.stop, names.stop_most.unwrap_or(most));
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::menu::{BUILT_IN, Menu};
    use crate::serve::MtpOffer;

    /// What a request comes to on a server with these settings.
    fn read(body: &Value, api: &Api, sampling: SamplingDefaults, stop_strings: usize) -> Result<Params, ApiError> {
        let text = || "m".to_owned();
        let info = ModelInfo {
            id: text(),
            path: text(),
            created: 0,
            n_ctx: 64,
            n_ctx_train: 64,
            n_vocab: 9,
            n_embd: 1,
            n_params: 1,
            size: 1,
            ftype: text(),
            arch: text(),
            trunk_layers: 1,
            nextn: 0,
            mtp_checked: false,
            sampling,
        };
        let spec = SpecConfig { default: BUILT_IN, menu: Menu::of(BUILT_IN), mtp: MtpOffer::Ready };
        let offer = Offer { names: &OPENAI, info: &info, spec: &spec, slots: 1, api, stop_strings, stats: true };
        Params::read(&Fields::body(body.as_object().unwrap()), &offer, &mut Random::new())
    }

    #[test]
    fn where_a_request_is_silent_the_server_decides() {
        let api = Api { ping: None, temperature_max: 3.0, ..Api::default() };
        let sampling = SamplingDefaults {
            temperature: 2.5,
            top_k: 7,
            typical_p: 0.75,
            top_p: 0.5,
            min_p: 0.25,
            repeat_penalty: 1.5,
            repeat_last_n: 3,
            presence_penalty: 1.0,
            frequency_penalty: -1.0,
        };
        let silent = read(&json!({}), &api, sampling, 1).unwrap();
        let s = &silent.sampling;
        assert_eq!((s.temperature, s.top_k, s.typical_p, s.top_p, s.min_p), (2.5, 7, 0.75, 0.5, 0.25));
        assert_eq!((s.repeat_penalty, s.repeat_last_n, s.presence_penalty), (1.5, 3, 1.0));
        assert_eq!((s.frequency_penalty, silent.ping), (-1.0, None));
        let all = json!({"temperature": 0, "top_k": 0, "typ_p": 1, "top_p": 1, "min_p": 0, "repetition_penalty": 1, "repeat_last_n": 0,
            "presence_penalty": 0, "frequency_penalty": 0, "sse_ping_interval": 4, "stop": "x"});
        let given = read(&all, &api, sampling, 1).unwrap();
        let s = &given.sampling;
        assert_eq!((s.temperature, s.top_k, s.typical_p, s.top_p, s.min_p), (0.0, 0, 1.0, 1.0, 0.0));
        assert_eq!((s.repeat_penalty, s.repeat_last_n, s.presence_penalty), (1.0, 0, 0.0));
        assert_eq!((s.frequency_penalty, given.ping), (0.0, Some(Duration::from_secs(4))));
        let refused = |body: Value| read(&body, &api, sampling, 1).map(drop).unwrap_err().param.unwrap();
        assert_eq!(refused(json!({"temperature": 3.5})), "temperature");
        assert_eq!(refused(json!({"stop": ["x", "y"]})), "stop");
        assert_eq!([101, -101].map(|n| refused(json!({"priority": n}))), ["priority"; 2]);
        // Running usage is usage: who asks for none gets none.
        let running = |usage: bool| {
            let options = json!({"include_usage": usage, "continuous_usage_stats": true});
            read(&json!({"stream": true, "stream_options": options}), &api, sampling, 1).unwrap().continuous_usage
        };
        assert!(running(true) && !running(false));
    }
}
