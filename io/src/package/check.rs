//! What a manifest says, held against itself: no file is looked at. Everything wrong is collected.

use std::collections::HashSet;

use super::issues::Issue;
use super::manifest::{
    Artifact, FORMAT, Generation, Manifest, Named, Proposer, Role, SCHEMA_VERSION, Speculative, Strategy, WindowPolicy,
};

/// Blocks at most. No model comes near; it bounds the search for missing ones.
const LAYERS_MAX: u32 = 1 << 12;
/// Longest match of an `ngram-cache`, least and longest of an `ngram-suffix`. Source: the schema of version 1.
const CACHE_MATCH_MAX: u32 = 4;
const SUFFIX_MATCH_MIN: u32 = 3;
const SUFFIX_MATCH_MAX: u32 = 64;
/// The word for no strategy at all, in packages and here.
pub const OFF: [&str; 2] = ["disabled", "off"];

/// Everything that is wrong with a manifest. Of another schema nothing else is said: its fields may mean anything.
pub fn manifest(manifest: &Manifest) -> Vec<Issue> {
    if let Some(issue) = schema(manifest) {
        return vec![issue];
    }
    let mut found = identity(manifest);
    found.extend(layout(manifest));
    found.extend(generation(manifest));
    found
}

/// Whether the fields mean what they are taken for here.
pub fn schema(manifest: &Manifest) -> Option<Issue> {
    if manifest.schema_version != SCHEMA_VERSION {
        let message = format!("is {}, expected {SCHEMA_VERSION}", manifest.schema_version);
        return Some(Issue::new("unsupported_schema_version", "schema_version", message));
    }
    let message = || format!("is {:?}, expected {FORMAT:?}", manifest.format);
    (manifest.format != FORMAT).then(|| Issue::new("invalid_format", "format", message()))
}

/// How the package may draft.
pub fn generation(manifest: &Manifest) -> Vec<Issue> {
    let mut found = Issues::default();
    if let Some(speculative) = speculative(manifest) {
        // Of a number that is wrong itself nothing follows.
        let layers = Some(manifest.layer_count).filter(|count| (1..=LAYERS_MAX).contains(count));
        menu(speculative, layers.unwrap_or(u32::MAX), &mut found);
    }
    found.0
}

/// The menu of strategies, if there is one.
pub fn speculative(manifest: &Manifest) -> Option<&Speculative> {
    let Generation { speculative_decoding, .. } = manifest.generation.as_ref()?;
    speculative_decoding.as_ref()
}

/// Whether this is a SHA-256 as 64 lower-case hexadecimal digits.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a path stays below the folder it is taken from, whatever the system: parts between `/`, none of them empty,
/// `.` or `..`, no drive, no backslash, no control character.
pub fn is_safe_path(path: &str) -> bool {
    let plain = |c: char| c != '\\' && c != ':' && !c.is_control();
    !path.is_empty() && path.chars().all(plain) && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[derive(Default)]
struct Issues(Vec<Issue>);

impl Issues {
    fn add(&mut self, code: &str, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(Issue::new(code, path, message));
    }

    fn unless(&mut self, fine: bool, code: &str, path: &str, message: impl FnOnce() -> String) {
        if !fine {
            self.add(code, path, message());
        }
    }
}

/// What the package is.
pub fn identity(manifest: &Manifest) -> Vec<Issue> {
    let mut found = Issues::default();
    let id = manifest.model_id.as_str();
    let is_path = || id.starts_with(['/', '.', '~']) || id.contains('\\') || id.ends_with(".gguf");
    if id.trim().is_empty() {
        found.add("empty_model_id", "model_id", "is empty");
    } else if is_path() || id.chars().any(|c| c.is_whitespace() || c.is_control()) {
        found.add("invalid_model_id", "model_id", format!("is {id:?}, expected a coordinate, not a path"));
    }
    match manifest.activation_width {
        None => found.add("missing_activation_width", "activation_width", "is absent, expected the hidden size"),
        Some(1..) => {}
        Some(n) => found.add("invalid_activation_width", "activation_width", format!("is {n}, expected at least 1")),
    }
    let source = &manifest.source_model;
    found.unless(!source.path.trim().is_empty(), "empty_source_model_path", "source_model.path", || "is empty".into());
    let digest = |text: &str| format!("is {text:?}, expected 64 hexadecimal digits");
    found.unless(is_digest(&source.sha256), "invalid_source_model_sha256", "source_model.sha256", || {
        digest(&source.sha256)
    });
    let mut names = HashSet::new();
    for (i, file) in source.files.iter().enumerate() {
        let path = format!("source_model.files[{i}]");
        found.unless(is_digest(&file.sha256), "invalid_source_model_sha256", &format!("{path}.sha256"), || {
            digest(&file.sha256)
        });
        found.unless(names.insert(file.path.as_str()), "invalid_source_model_file", &format!("{path}.path"), || {
            format!("{:?} stands twice", file.path)
        });
        found.unless(!file.path.trim().is_empty(), "invalid_source_model_file", &format!("{path}.path"), || {
            "is empty".to_owned()
        });
    }
    if let Some(primary) = &source.primary_file {
        // Without a list nothing says which files there were.
        let known = names.is_empty() || names.contains(primary.as_str());
        let code = "invalid_source_model_primary_file";
        found.unless(known && !primary.trim().is_empty(), code, "source_model.primary_file", || {
            let names: Vec<&str> = source.files.iter().map(|file| file.path.as_str()).collect();
            format!("is {primary:?}, expected one of source_model.files: {}", names.join(", "))
        });
    }
    let abi = manifest.skippy_abi_version.trim();
    found.unless(!abi.is_empty(), "missing_skippy_abi_version", "skippy_abi_version", || {
        "is absent or empty".to_owned()
    });
    found.0
}

/// Which files it consists of.
pub fn layout(manifest: &Manifest) -> Vec<Issue> {
    let mut found = Issues::default();
    let shared = &manifest.shared;
    for (name, artifact) in
        [("metadata", &shared.metadata), ("embeddings", &shared.embeddings), ("output", &shared.output)]
    {
        found.unless(artifact.is_some(), "missing_shared_artifact", &format!("shared.{name}"), || {
            "is absent".to_owned()
        });
    }
    if !(1..=LAYERS_MAX).contains(&manifest.layer_count) {
        let message = format!("is {}, expected 1 to {LAYERS_MAX}", manifest.layer_count);
        found.add("invalid_layer_count", "layer_count", message);
    } else {
        let mut there = HashSet::new();
        for layer in &manifest.layers {
            let (index, count) = (layer.layer_index, manifest.layer_count);
            if index >= count {
                let message = format!("layer_index {index} with layer_count {count}");
                found.add("layer_index_out_of_range", &layer.artifact.path, message);
            } else if !there.insert(index) {
                found.add("duplicate_layer_index", &layer.artifact.path, format!("layer_index {index} stands twice"));
            }
        }
        for index in (0..manifest.layer_count).filter(|index| !there.contains(index)) {
            found.add("missing_layer", format!("layers[{index}]"), format!("no artifact has layer_index {index}"));
        }
    }
    for (i, projector) in manifest.projectors.iter().enumerate() {
        let path = format!("projectors[{i}].kind");
        match projector.kind.as_str() {
            "mmproj" => {}
            "" => found.add("empty_projector_kind", path, "is empty"),
            other => found.add("unsupported_projector_kind", path, format!("is {other:?}, expected \"mmproj\"")),
        }
    }
    let mut paths = HashSet::new();
    for (role, artifact) in manifest.artifacts() {
        artifact_alone(role, artifact, &mut found);
        if !paths.insert(artifact.path.as_str()) {
            found.add("duplicate_artifact_path", &artifact.path, "two artifacts have this path");
        }
    }
    found.0
}

fn artifact_alone(role: Role, artifact: &Artifact, found: &mut Issues) {
    let Artifact { path, tensor_count, tensor_bytes, artifact_bytes, sha256, .. } = artifact;
    found.unless(is_safe_path(path), "unsafe_artifact_path", path, || {
        format!("the path of the {} artifact leads out of the package", role.name())
    });
    found.unless(is_digest(sha256), "invalid_artifact_sha256", path, || {
        format!("sha256 is {sha256:?}, expected 64 hexadecimal digits")
    });
    found.unless(*artifact_bytes > 0, "empty_artifact", path, || "artifact_bytes is 0".to_owned());
    let fits = *artifact_bytes == 0 || tensor_bytes <= artifact_bytes;
    let agree = (*tensor_count == 0) == (*tensor_bytes == 0) && fits;
    found.unless(agree, "inconsistent_artifact_tensors", path, || {
        format!("tensor_count {tensor_count} with tensor_bytes {tensor_bytes} in {artifact_bytes} bytes")
    });
}

fn menu(speculative: &Speculative, layers: u32, found: &mut Issues) {
    let Speculative { default, proposers, strategies, .. } = speculative;
    let top = "generation.speculative_decoding";
    for (name, proposer) in proposers.iter() {
        let path = format!("{top}.proposers.{name}");
        found
            .unless(!name.trim().is_empty(), "empty_speculative_proposer_name", &path, || "a name is empty".to_owned());
        self::proposer(proposer, layers, &path, found);
    }
    for (name, strategy) in strategies.iter() {
        let path = format!("{top}.strategies.{name}");
        found
            .unless(!name.trim().is_empty(), "empty_speculative_strategy_name", &path, || "a name is empty".to_owned());
        self::strategy(strategy, proposers, layers, &path, found);
    }
    let path = format!("{top}.default");
    let there = OFF.contains(&default.as_str()) || find(strategies, default).is_some();
    if default.trim().is_empty() {
        found.add("empty_speculative_default", path, "is empty");
    } else if !there {
        let names: Vec<&str> = strategies.iter().map(|(name, _)| name).collect();
        let message = format!("is {default:?}, expected one of {}", names.join(", "));
        found.add("missing_speculative_default_strategy", path, message);
    }
}

/// A strategy by its id, or by the older spelling of `mtp`.
pub fn find<'a>(strategies: &'a Named<Strategy>, id: &str) -> Option<&'a Strategy> {
    const OLD: &str = "native-mtp-n1";
    let other = match id {
        "mtp" => Some(OLD),
        OLD => Some("mtp"),
        _ => None,
    };
    strategies.get(id).or_else(|| strategies.get(other?))
}

fn proposer(proposer: &Proposer, layers: u32, path: &str, found: &mut Issues) {
    match proposer.kind.as_str() {
        "native-mtp" => {
            native_mtp(proposer.prediction_depth, proposer.layer_indices.as_deref(), layers, path, found);
            found.unless(proposer.max_draft_tokens != Some(0), "invalid_native_mtp_max_draft_tokens", path, || {
                "max_draft_tokens is 0, expected at least 1".to_owned()
            });
        }
        "ngram-cache" | "ngram-simple" => ngrams(
            proposer,
            |_, max| (max > CACHE_MATCH_MAX).then_some("unsupported_ngram_cache_max_window"),
            "invalid_ngram_cache_history_scope",
            path,
            found,
        ),
        "ngram-suffix" => ngrams(
            proposer,
            |min, max| (min < SUFFIX_MATCH_MIN || max > SUFFIX_MATCH_MAX).then_some("unsupported_ngram_suffix_window"),
            "invalid_ngram_suffix_history_scope",
            path,
            found,
        ),
        other => {
            let message = format!("type is {other:?}, expected native-mtp, ngram-cache, ngram-suffix or ngram-simple");
            found.add("unsupported_speculative_proposer_type", path, message);
        }
    }
}

fn native_mtp(depth: Option<u32>, indices: Option<&[u32]>, layers: u32, path: &str, found: &mut Issues) {
    found.unless(depth == Some(1), "unsupported_native_mtp_prediction_depth", path, || {
        format!("prediction_depth is {}, expected 1", depth.map_or("absent".to_owned(), |n| n.to_string()))
    });
    match indices {
        None | Some([]) => found.add("missing_native_mtp_layers", path, "layer_indices is absent or empty"),
        Some(indices) => {
            if let Some(index) = indices.iter().find(|index| **index >= layers) {
                let message = format!("layer_indices names {index}, layer_count is {layers}");
                found.add("native_mtp_layer_out_of_range", path, message);
            }
        }
    }
}

fn ngrams(
    proposer: &Proposer,
    beyond: impl Fn(u32, u32) -> Option<&'static str>,
    scope_code: &str,
    path: &str,
    found: &mut Issues,
) {
    let (min, max) = (proposer.ngram_min.unwrap_or(0), proposer.ngram_max.unwrap_or(0));
    if min < 1 || min > max {
        let message = format!("ngram_min {min} and ngram_max {max}, expected 1 <= ngram_min <= ngram_max");
        found.add("invalid_ngram_proposer_window", path, message);
    } else if let Some(code) = beyond(min, max) {
        let range = match code {
            "unsupported_ngram_suffix_window" => format!("{SUFFIX_MATCH_MIN} to {SUFFIX_MATCH_MAX}"),
            _ => format!("at most {CACHE_MATCH_MAX}"),
        };
        found.add(code, path, format!("ngram_min {min} and ngram_max {max}, expected {range}"));
    }
    let tokens = proposer.max_proposal_tokens.unwrap_or(0);
    found.unless(tokens > 0, "invalid_ngram_proposer_max_tokens", path, || {
        "max_proposal_tokens is 0 or absent, expected at least 1".to_owned()
    });
    let scope = proposer.history_scope.as_deref();
    found.unless(scope == Some("request"), scope_code, path, || {
        format!("history_scope is {}, expected \"request\"", scope.map_or("absent".to_owned(), |s| format!("{s:?}")))
    });
}

fn strategy(strategy: &Strategy, proposers: &Named<Proposer>, layers: u32, path: &str, found: &mut Issues) {
    let named = |name: &Option<String>| name.as_deref().map(str::trim).filter(|n| !n.is_empty()).map(str::to_owned);
    match strategy.kind.as_str() {
        "" => found.add("empty_speculative_strategy_type", path, "type is empty"),
        "native-mtp" => {
            let inline = strategy.prediction_depth.is_some() || strategy.layer_indices.is_some();
            match named(&strategy.proposer) {
                Some(_) if inline => {
                    found.add("ambiguous_native_mtp_strategy", path, "has a proposer and fields of one");
                }
                Some(name) => {
                    let code = "native_mtp_strategy_proposer_type_mismatch";
                    must_be(proposers, &name, &["native-mtp"], code, path, found);
                }
                None if inline => {
                    let indices = strategy.layer_indices.as_deref();
                    native_mtp(strategy.prediction_depth, indices, layers, path, found);
                }
                None => found.add("missing_speculative_proposer", path, "names no proposer and has no fields of one"),
            }
        }
        kind @ ("ngram-cache" | "ngram-suffix" | "ngram-simple") => match named(&strategy.proposer) {
            Some(name) => must_be(proposers, &name, &[kind], "ngram_strategy_proposer_type_mismatch", path, found),
            None => found.add("missing_ngram_strategy_proposer", path, "names no proposer"),
        },
        "composite" => {
            match named(&strategy.primary) {
                Some(name) => {
                    must_be(proposers, &name, &["native-mtp"], "invalid_composite_primary_type", path, found);
                }
                None => found.add("missing_composite_primary", path, "names no primary proposer"),
            }
            match named(&strategy.extender) {
                Some(name) => {
                    let kinds = &["ngram-suffix", "ngram-cache", "ngram-simple"];
                    must_be(proposers, &name, kinds, "invalid_composite_extender_type", path, found);
                }
                None => found.add("missing_composite_extender", path, "names no extender"),
            }
            match &strategy.extension_policy {
                None => found.add("missing_composite_extension_policy", path, "has no extension_policy"),
                Some(policy) => {
                    let first = policy.initial_tokens.unwrap_or(1);
                    let fine = policy.max_tokens > 0 && (1..=policy.max_tokens).contains(&first);
                    found.unless(fine, "invalid_extension_policy_tokens", path, || {
                        format!("max_tokens {} and initial_tokens {first}, expected 1 or more", policy.max_tokens)
                    });
                }
            }
        }
        // Read, and never offered: its model is not in the package.
        "draft-model" => {}
        other => {
            let message = format!("type is {other:?}, expected native-mtp, ngram-suffix, ngram-cache or composite");
            found.add("unsupported_speculative_strategy_type", path, message);
        }
    }
    if let Some(policy) = &strategy.window_policy {
        window(policy, path, found);
    }
}

fn must_be(proposers: &Named<Proposer>, name: &str, kinds: &[&str], code: &str, path: &str, found: &mut Issues) {
    match proposers.get(name) {
        None => found.add("missing_speculative_proposer", path, format!("names {name:?}, which is no proposer")),
        Some(proposer) if kinds.contains(&proposer.kind.as_str()) => {}
        Some(proposer) => {
            let message = format!("{name:?} is of type {:?}, expected {}", proposer.kind, kinds.join(" or "));
            found.add(code, path, message);
        }
    }
}

fn window(policy: &WindowPolicy, path: &str, found: &mut Issues) {
    let path = format!("{path}.window_policy");
    found.unless(!policy.default.trim().is_empty(), "empty_window_policy_default", &path, || {
        "default is empty, expected fixed or adaptive".to_owned()
    });
    let WindowPolicy { initial_window, min_window, max_window, pipeline_depth, .. } = *policy;
    if [initial_window, min_window, max_window, pipeline_depth].contains(&Some(0)) {
        found.add("invalid_window_policy_zero", path, "a window or the pipeline depth is 0, expected at least 1");
        return;
    }
    let (min, max) = (min_window.unwrap_or(1), max_window.unwrap_or(u32::MAX));
    if min > max {
        found.add("invalid_window_policy_bounds", path, format!("min_window {min} is above max_window {max}"));
    } else if let Some(initial) = initial_window.filter(|initial| !(min..=max).contains(initial)) {
        let message = format!("initial_window {initial} is outside {min}..={max}");
        found.add("invalid_window_policy_initial", path, message);
    }
}
