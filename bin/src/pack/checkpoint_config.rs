//! The `config.json` of a checkpoint against the metadata of the model that its head is for.

use engine::model::config::{Config, Ffn, Mixer};
use serde_json::Value;

/// Names of architectures in checkpoints.
const MODEL_TYPES: &[(&str, &str)] = &[
    ("qwen3_5", "qwen35"),
    ("qwen3_5_text", "qwen35"),
    ("qwen3_5_moe", "qwen35moe"),
    ("qwen3_5_moe_text", "qwen35moe"),
    ("qwen3_next", "qwen3next"),
    ("nemotron_h", "nemotron_h_moe"),
    ("qwen4_exp", "qwen4exp"),
    ("qwen4_exp_text", "qwen4exp"),
];

/// What came of it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Checked {
    /// Keys that say what the target says.
    pub agree: Vec<&'static str>,
    /// Keys that do not: name, found, expected.
    pub differ: Vec<String>,
}

/// Compares what both speak of. `rows`: rows of the target's token table.
pub fn check(config: &Value, target: &Config, rows: u64) -> Checked {
    let mut out = Checked::default();
    if !config.is_object() {
        out.differ.push(format!("it is {}, expected an object", short(config)));
        return out;
    }
    // Models that see have their text's numbers in a part of their own.
    let text = of(config, "text_config").unwrap_or(config);
    if !text.is_object() {
        out.differ.push(format!("text_config is {}, expected an object", short(text)));
        return out;
    }
    // What is compared must be what it is taken for: a number in quotes agrees with nothing, and says nothing either.
    let mut wrong = Vec::new();
    let mut typed = |key: &str, expected: &str, value: Option<&Value>, found: Option<String>| {
        if let (Some(value), None) = (value, &found) {
            wrong.push(format!("{key} is {}, expected {expected}", short(value)));
        }
        found
    };
    let mut compare = |key: &'static str, found: Option<String>, expected: Option<String>| {
        let (Some(found), Some(expected)) = (found, expected) else { return };
        match found == expected {
            true => out.agree.push(key),
            false => out.differ.push(format!("{key} is {found}, the target has {expected}")),
        }
    };
    let arch = target.arch.name();
    // Of both, where both say it: a name that is not known here is that of a model whose head is not converted here.
    let own = of(config, "model_type").filter(|_| !std::ptr::eq(text, config));
    let mut models = Vec::new();
    for said in [of(text, "model_type"), own].into_iter().flatten() {
        let Some(name) = typed("model_type", "a name", Some(said), said.as_str().map(str::to_owned)) else { continue };
        let known = MODEL_TYPES.iter().find(|(known, _)| *known == name);
        models.push(known.map_or_else(|| short(said), |(_, arch)| (*arch).to_owned()));
    }
    let other = models.iter().find(|model| **model != arch).or(models.first());
    compare("model_type", other.cloned(), Some(arch.to_owned()));
    let block = target.blocks.get(target.trunk);
    let (dense, experts) = match block.map(|b| b.ffn) {
        Some(Ffn::Dense { width, .. }) => (Some(width), None),
        Some(Ffn::Experts(experts)) => (None, Some(experts)),
        _ => (None, None),
    };
    let own = target.qwen4exp.as_ref();
    // A release of this family's head alone may count its own layers.
    let layers = (arch != "nemotron_h_moe").then_some(target.trunk);
    let numbers: [(&'static str, &[&str], Option<usize>); 15] = [
        ("hidden_size", &[], Some(target.d_model)),
        ("num_hidden_layers", &[], layers),
        ("num_attention_heads", &[], block.map(|b| b.heads)),
        ("num_key_value_heads", &[], block.map(|b| b.kv_heads)),
        ("head_dim", &[], Some(target.head_dim)),
        ("intermediate_size", &[], dense),
        ("num_experts", &["n_routed_experts"], experts.map(|e| e.router.experts)),
        ("num_experts_per_tok", &[], experts.map(|e| e.router.used)),
        ("moe_intermediate_size", &[], experts.map(|e| e.width)),
        ("shared_expert_intermediate_size", &["moe_shared_expert_intermediate_size"], experts.map(|e| e.shared_width)),
        ("moe_latent_size", &[], experts.and_then(|e| e.latent)),
        ("hc_count", &[], own.map(|own| own.streams)),
        ("hc_lowrank", &[], own.map(|own| own.low_rank)),
        ("indexer_n_heads", &[], own.map(|own| own.indexer.heads)),
        ("indexer_head_dim", &[], own.map(|own| own.indexer.dim)),
    ];
    let whole = "a whole number";
    let heads: &[&str] = &["num_nextn_predict_layers"];
    for (key, others, expected) in numbers.into_iter().chain([("mtp_num_hidden_layers", heads, Some(1))]) {
        let Some(expected) = expected else { continue };
        let there = std::iter::once(&key).chain(others).find_map(|key| Some((*key, of(text, key)?)));
        let Some((name, value)) = there else { continue };
        let found = typed(name, whole, Some(value), value.as_u64().map(|n| n.to_string()));
        compare(key, found, Some(expected.to_string()));
    }
    let float = |value: Option<&Value>| value.and_then(Value::as_f64).map(|x| (x as f32).to_string());
    let eps = of(text, "rms_norm_eps");
    compare("rms_norm_eps", typed("rms_norm_eps", "a number", eps, float(eps)), Some(target.norm_eps.to_string()));
    if target.rope.is_some() {
        let parameters = of(text, "rope_parameters");
        typed("rope_parameters", "an object", parameters, parameters.and_then(|p| p.is_object().then(String::new)));
    }
    // What changes every number and is no size. Values that the families' own code has where the key is left out are what
    // the engine computes.
    for key in ["hidden_act", "hidden_activation"] {
        let act = of(text, key);
        let found =
            typed(key, "a name", act, act.and_then(word)).map(|act| if act == "swish" { "silu".into() } else { act });
        compare(key, found, (arch != "nemotron_h_moe").then(|| "silu".to_owned()));
    }
    let mlp = of(text, "mlp_hidden_act");
    let activation = (arch == "nemotron_h_moe").then(|| "relu2".to_owned());
    let found = typed("mlp_hidden_act", "a name", mlp, mlp.and_then(word));
    compare("mlp_hidden_act", found, activation);
    let switches = [
        ("attention_bias", false),
        ("qkv_bias", false),
        ("mlp_bias", false),
        ("use_sliding_window", false),
        ("mtp_use_dedicated_embeddings", false),
        ("attn_output_gate", true),
    ];
    for (key, expected) in switches {
        let on = of(text, key);
        let found = typed(key, "true or false", on, on.and_then(Value::as_bool).map(|b| b.to_string()));
        compare(key, found, Some(expected.to_string()));
    }
    let kinds: Vec<&str> = target.blocks[..target.trunk].iter().filter_map(|b| layer_type(b.mixer)).collect();
    if kinds.len() == target.trunk {
        let types = of(text, "layer_types");
        let list = types.and_then(Value::as_array).map(|list| list.iter().map(Value::as_str).collect::<Vec<_>>());
        // The order is told by where it parts from the target's.
        let differs = |list: &Vec<Option<&str>>| {
            let first =
                (0..list.len().max(kinds.len())).find(|i| list.get(*i).copied().flatten() != kinds.get(*i).copied());
            first.map_or_else(|| "the target's".to_owned(), |i| format!("another from layer {i} on"))
        };
        let found = typed("layer_types", "a list of names", types, list.as_ref().map(differs));
        compare("layer_types", found, Some("the target's".to_owned()));
    }
    if let Some(rope) = &target.rope {
        // The older place of these is `rope_scaling`, with `type` for the kind; some configurations have a part for each
        // type of layer. Whatever any of them says must fit.
        let mut places: Vec<&Value> = vec![text];
        for part in ["rope_parameters", "rope_scaling"].into_iter().filter_map(|key| of(text, key)) {
            places.push(part);
            places.extend(part.as_object().into_iter().flat_map(|map| map.values()).filter(|value| value.is_object()));
        }
        let plain = rope.position_scale == 1.0 && !rope.needs_factors;
        for kind in places[1..].iter().flat_map(|p| [of(p, "rope_type"), of(p, "type")]) {
            compare(
                "rope_type",
                typed("rope_type", "a name", kind, kind.and_then(word)),
                plain.then(|| "default".to_owned()),
            );
        }
        for place in places {
            let partial = of(place, "partial_rotary_factor");
            let found = typed("partial_rotary_factor", "a number", partial, float(partial));
            let expected = rope.n_rot as f32 / target.head_dim as f32;
            compare("partial_rotary_factor", found, Some(expected.to_string()));
            let theta = of(place, "rope_theta");
            compare(
                "rope_theta",
                typed("rope_theta", "a number", theta, float(theta)),
                Some(rope.freq_base.to_string()),
            );
            let sections = of(place, "mrope_section");
            let found = sections
                .and_then(Value::as_array)
                .map(|list| format!("{:?}", list.iter().map(Value::as_u64).collect::<Vec<_>>()));
            let expected =
                rope.sections.map(|s| format!("{:?}", s[..3].iter().map(|n| Some(u64::from(*n))).collect::<Vec<_>>()));
            compare("mrope_section", typed("mrope_section", "a list of numbers", sections, found), expected);
            let woven = of(place, "mrope_interleaved");
            let found = typed(
                "mrope_interleaved",
                "true or false",
                woven,
                woven.and_then(Value::as_bool).map(|b| b.to_string()),
            );
            compare("mrope_interleaved", found, rope.sections.map(|_| "true".to_owned()));
        }
    }
    out.agree.dedup();
    let vocab = of(text, "vocab_size");
    typed("vocab_size", whole, vocab, vocab.and_then(Value::as_u64).map(|n| n.to_string()));
    if let Some(found) = vocab.and_then(Value::as_u64) {
        let tokens = target.tokens.map_or(0, |t| t.len as u64);
        match (tokens..=rows).contains(&found) {
            true => out.agree.push("vocab_size"),
            false => out.differ.push(format!("vocab_size is {found}, the target has {tokens} tokens in {rows} rows")),
        }
    }
    out.differ.extend(wrong);
    out
}

/// A field that says something: `null` is how writers leave one out.
fn of<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

/// The name of a mixer in `layer_types`, for families that have the key.
fn layer_type(mixer: Mixer) -> Option<&'static str> {
    match mixer {
        Mixer::Attention => Some("full_attention"),
        Mixer::Delta => Some("linear_attention"),
        Mixer::Mamba2 | Mixer::None => None,
    }
}

/// A name as messages write it: quoted and cut where it is none.
fn word(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    let plain = text.len() <= 80 && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    Some(if plain { text.to_owned() } else { short(value) })
}

/// A value as messages write it.
fn short(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string().chars().take(80).collect(),
    }
}
