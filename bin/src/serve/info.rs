//! What the server says about itself and its model.

use serde_json::{Value, json};

use crate::serve::SpecConfig;

/// Sampling where neither request nor flags say anything.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SamplingDefaults {
    /// 0 = argmax.
    pub temperature: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 1 = off.
    pub typical_p: f32,
    /// 1 = off.
    pub top_p: f32,
    /// 0 = off.
    pub min_p: f32,
    /// 1 = off.
    pub repeat_penalty: f32,
    /// `u32::MAX` = whole context.
    pub repeat_last_n: u32,
    /// 0 = off.
    pub presence_penalty: f32,
    /// 0 = off.
    pub frequency_penalty: f32,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        }
    }
}

/// Facts about the served model.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelInfo {
    /// Name in answers.
    pub id: String,
    /// Where it came from: the name of a file, or its path where that may be told.
    pub path: String,
    /// Modification time of the file, seconds since 1970.
    pub created: u64,
    /// Tokens one request may hold.
    pub n_ctx: usize,
    /// Tokens the model was trained for.
    pub n_ctx_train: usize,
    /// Ids run below this.
    pub n_vocab: usize,
    /// Width of a hidden row.
    pub n_embd: usize,
    /// Weights.
    pub n_params: u64,
    /// Bytes of them.
    pub size: u64,
    /// Quantisation name.
    pub ftype: String,
    /// `general.architecture`.
    pub arch: String,
    /// Layers, without those of MTP blocks.
    pub trunk_layers: usize,
    /// MTP blocks.
    pub nextn: usize,
    /// Whether the MTP block's drafts were compared with the model's choices before anything was served: not where there is
    /// none, nor where the model is split.
    pub mtp_checked: bool,
    /// From flags, the model file, or the built-in values.
    pub sampling: SamplingDefaults,
}

/// The name with the type of most weights, unless it says that itself.
fn display_name(id: &str, ftype: &str) -> String {
    match id.to_ascii_uppercase().contains(&ftype.to_ascii_uppercase()) {
        true => id.to_owned(),
        false => format!("{id} {ftype}"),
    }
}

/// The entries of `/v1/models`: one for the model's own name, and one for each of the others.
pub(crate) fn entries(info: &ModelInfo, spec: &SpecConfig, aliases: &[String]) -> Vec<Value> {
    let others = aliases.iter().filter(|alias| **alias != info.id).map(String::as_str);
    std::iter::once(info.id.as_str()).chain(others).map(|name| entry(name, info, spec, aliases)).collect()
}

fn entry(name: &str, info: &ModelInfo, spec: &SpecConfig, aliases: &[String]) -> Value {
    json!({
        "id": name,
        "object": "model",
        "type": "model",
        "created": info.created,
        "created_at": rfc3339(info.created),
        "owned_by": "engine",
        "display_name": display_name(name, &info.ftype),
        "lifecycle": "active",
        "max_model_len": info.n_ctx,
        "max_input_tokens": info.n_ctx - 1,
        "max_tokens": info.n_ctx,
        "aliases": aliases,
        "meta": {
            "n_ctx": info.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_vocab": info.n_vocab,
            "n_embd": info.n_embd,
            "n_params": info.n_params,
            "size": info.size,
            "ftype": info.ftype,
            "arch": info.arch,
            "nextn": info.nextn,
            "strategies": spec.strategies(),
            "strategy_default": spec.default.strategy.name(),
            "mtp_unavailable": spec.mtp.reason(),
            "mtp_checked": info.mtp_checked,
        },
    })
}

/// The `/v1/models` list, or what of it stands behind the entry `after`.
pub(crate) fn list(entries: &[Value], after: Option<&str>) -> Value {
    let start = after.and_then(|after| entries.iter().position(|entry| entry["id"] == after));
    let data = &entries[start.map_or(0, |at| at + 1)..];
    let id = |entry: Option<&Value>| entry.map_or(Value::Null, |entry| entry["id"].clone());
    json!({"object": "list", "has_more": false, "first_id": id(data.first()), "last_id": id(data.last()), "data": data})
}

/// `/version`.
pub(crate) fn version() -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": option_env!("SLIPSTREAM_COMMIT").unwrap_or("unknown"),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
    })
}

/// `system_fingerprint` of every answer.
pub(crate) fn fingerprint() -> &'static str {
    concat!("slipstream-", env!("CARGO_PKG_VERSION"))
}

/// Seconds since 1970 as `YYYY-MM-DDThh:mm:ssZ`.
///
/// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_type_once() {
        assert_eq!(display_name("coder", "Q8_0"), "coder Q8_0");
        assert_eq!(display_name("coder-Q8_0", "Q8_0"), "coder-Q8_0");
        assert_eq!(display_name("coder.q4_k_m", "Q4_K"), "coder.q4_k_m");
    }

    #[test]
    fn dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(rfc3339(1_789_999_999), "2026-09-21T14:13:19Z");
    }
}
