//! What the schema's fields must say of each other.

use std::collections::HashSet;
use std::fmt;

use super::{FileEntry, Provenance, Role, TensorOrigin};

/// Everything that is wrong with a record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Faults(pub Vec<String>);

impl Faults {
    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.0.iter().take(SHOWN_MAX).enumerate() {
            let text: String = fault.chars().take(CHARS_MAX).collect();
            let cut = if text.len() < fault.len() { "..." } else { "" };
            write!(f, "{}{text}{cut}", if i == 0 { "" } else { "; " })?;
        }
        match self.0.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// Faults that a message lists, and characters of each.
const SHOWN_MAX: usize = 16;
const CHARS_MAX: usize = 400;
/// Most entries of a list in a record, and longest name or pattern: far beyond what any tool writes, and few enough that
/// holding each tensor against each of them takes no time.
const ENTRIES_MAX: usize = 10_000;
const NAME_MAX: usize = 1024;

/// Whether a pattern takes a name. A `*` stands for any characters, other characters for themselves.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, after)) = left.split_once(part) else { return false };
        left = after;
    }
    left.ends_with(last)
}

fn is_id(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn is_revision(text: &str) -> bool {
    (40..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

impl Provenance {
    /// What contradicts the schema or itself, as far as the record alone tells.
    pub fn check(&self) -> Faults {
        let mut faults = Vec::new();
        if let Some(large) = self.beyond() {
            return Faults(vec![large]);
        }
        let mut fault = |text: String| faults.push(text);
        let tool_ids: HashSet<&str> = self.tools.iter().map(|t| t.id.as_str()).collect();
        let source_ids: HashSet<&str> = self.sources.iter().map(|s| s.id.as_str()).collect();
        let mut ids = HashSet::new();
        let tools = self.tools.iter().map(|t| &t.id);
        let components = self.runtime_components.iter().map(|c| &c.id);
        for id in
            self.sources.iter().map(|s| &s.id).chain(tools).chain(components).chain(self.steps.iter().map(|s| &s.id))
        {
            if !is_id(id) {
                fault(format!("\"{id}\" is no id: expected letters, digits and . _ -"));
            }
            if !ids.insert(id) {
                fault(format!("the id {id} is there twice"));
            }
        }
        match self.sources.iter().filter(|s| s.role == Role::Target).count() {
            1 => {}
            n => fault(format!("{n} sources have the role target, expected 1")),
        }
        for source in &self.sources {
            if !is_revision(&source.revision) {
                let (id, revision) = (&source.id, &source.revision);
                fault(format!("source {id} has revision \"{revision}\", expected 40 to 64 hexadecimal digits"));
            }
            if source.files.is_empty() {
                fault(format!("source {} has no files", source.id));
            }
        }
        if self.steps.is_empty() {
            fault("there are no steps".into());
        }
        let mut known = source_ids.clone();
        for step in &self.steps {
            if !tool_ids.contains(step.tool.as_str()) {
                fault(format!("step {} names tool {}, which is not listed", step.id, step.tool));
            }
            for input in step.inputs.iter().filter(|input| !known.contains(input.as_str())) {
                fault(format!("step {} takes {input}, which is no source and no earlier step", step.id));
            }
            for rule in step.tensor_rules.iter().filter(|rule| rule.count == 0) {
                fault(format!("step {}: the rule for {} took no tensor", step.id, rule.pattern));
            }
            known.insert(&step.id);
        }
        if self.tensor_origins.is_empty() {
            fault("tensor_origins is empty".into());
        }
        for origin in &self.tensor_origins {
            let TensorOrigin { pattern, source, count, .. } = origin;
            if !source_ids.contains(source.as_str()) {
                fault(format!("tensors {pattern} come from {source}, which is no source"));
            }
            if *count == 0 {
                fault(format!("tensors {pattern} are none"));
            }
        }
        let target = self.sources.iter().find(|s| s.role == Role::Target).and_then(|s| s.tensor_tree_sha256);
        let invariants = &self.invariants;
        if invariants.target_tensors_byte_identical && target != invariants.target_tensor_tree_sha256 {
            let text = |digest: Option<_>| {
                digest.map_or_else(|| "absent".to_owned(), |d: crate::digest::Sha256| d.to_string())
            };
            fault(format!(
                "invariants.target_tensor_tree_sha256 is {}, the target's own is {}",
                text(invariants.target_tensor_tree_sha256),
                text(target)
            ));
        }
        Faults(faults)
    }

    /// What is larger than in any record: then nothing else of it is looked at.
    fn beyond(&self) -> Option<String> {
        let lists = [
            ("sources", self.sources.len()),
            ("tools", self.tools.len()),
            ("steps", self.steps.len()),
            ("tensor_origins", self.tensor_origins.len()),
            ("runtime_components", self.runtime_components.len()),
            ("files of sources", self.sources.iter().map(|s| s.files.len()).sum()),
            ("outputs of steps", self.steps.iter().map(|s| s.outputs.len()).sum()),
            ("inputs of steps", self.steps.iter().map(|s| s.inputs.len()).sum()),
        ];
        let mut names = self.tensor_origins.iter().map(|o| &o.pattern).chain(self.sources.iter().map(|s| &s.id));
        let list = lists.into_iter().find(|(_, len)| *len > ENTRIES_MAX);
        let list = list.map(|(name, len)| format!("there are {len} {name}, expected at most {ENTRIES_MAX}"));
        let mut long = || names.find(|name| name.len() > NAME_MAX).map(|name| name.len());
        list.or_else(|| Some(format!("a name or pattern has {} bytes, expected at most {NAME_MAX}", long()?)))
    }

    /// What contradicts the names of all tensors of the model: origins must take each of them once.
    pub fn check_tensors<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Faults {
        let mut faults = Vec::new();
        let mut counts = vec![0u64; self.tensor_origins.len()];
        for name in names {
            let mut takers = (0..counts.len()).filter(|&i| matches(&self.tensor_origins[i].pattern, name));
            match (takers.next(), takers.next()) {
                (None, _) => faults.push(format!("tensor {name} has no origin")),
                (Some(first), Some(second)) => {
                    let pattern = |i: usize| &self.tensor_origins[i].pattern;
                    faults.push(format!("tensor {name} has two origins: {} and {}", pattern(first), pattern(second)));
                }
                (Some(only), None) => counts[only] += 1,
            }
        }
        for (origin, found) in self.tensor_origins.iter().zip(counts) {
            if origin.count != found {
                faults.push(format!("tensors {}: found {found}, expected {}", origin.pattern, origin.count));
            }
        }
        Faults(faults)
    }

    /// What the record has no digest of: files, origins, the target. Nothing for a record that the schema's strict
    /// form accepts.
    pub fn unhashed(&self) -> Vec<String> {
        let file = |f: &FileEntry| f.sha256.is_none().then(|| f.path.clone());
        let files = self.sources.iter().flat_map(|s| &s.files).chain(self.steps.iter().flat_map(|s| &s.outputs));
        let origin = |o: &TensorOrigin| o.tensor_tree_sha256.is_none().then(|| format!("tensors {}", o.pattern));
        let target =
            self.invariants.target_tensor_tree_sha256.is_none().then(|| "all tensors of the target".to_owned());
        files.filter_map(file).chain(self.tensor_origins.iter().filter_map(origin)).chain(target).collect()
    }
}
