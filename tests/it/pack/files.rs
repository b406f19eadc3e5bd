//! Targets and heads as they are published: split sets, download caches, heads by every name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use engine_bin::pack::PackError;
use engine_bin::pack::graft::{DialectFlag, GraftFlags, Link, Report, graft};
use engine_io::digest::Sha256;
use engine_io::gguf::{Array, Meta, Value};
use tempfile::TempDir;

use crate::forward::edit::Edit;
use crate::forward::generate::qwen4exp;
use crate::forward::nemotron::file::Spec;
use crate::refusals::tiny;

/// A revision of a repository.
pub const REVISION: &str = "0123456789abcdef0123456789abcdef01234567";

/// A model with its head, and the number of its trunk's blocks.
#[derive(Clone)]
pub struct Whole {
    /// All of it.
    pub edit: Edit,
    /// Architecture.
    pub arch: String,
    /// Blocks of the trunk.
    pub trunk: usize,
}

impl Whole {
    /// Every architecture with an MTP block.
    pub fn all() -> Vec<Self> {
        vec![Self::qwen35(), Self::of(tiny::model("qwen35moe")), Self::of(Spec::BASE.edit()), Self::qwen4exp()]
    }

    /// The smallest.
    pub fn qwen35() -> Self {
        Self::of(tiny::model("qwen35"))
    }

    /// The one with a mixer at the end.
    pub fn qwen4exp() -> Self {
        Self::of(qwen4exp(7))
    }

    fn of(edit: Edit) -> Self {
        let arch = edit.meta.architecture().unwrap().to_owned();
        let trunk = edit.meta.get_u32(&format!("{arch}.block_count")).unwrap().unwrap() as usize - 1;
        Self { edit, arch, trunk }
    }

    /// A key of the architecture.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn prefix(&self) -> String {
        format!("blk.{}.", self.trunk)
    }

    /// As published without its head: arrays over the trunk's blocks, no key of NextN.
    pub fn target(&self) -> Edit {
        let own = self.prefix();
        let mut edit = self.edit.clone().drop(|n| n.starts_with(&own));
        let arrays: Vec<String> = ["attention.head_count_kv", "feed_forward_length", "attention.compress_ratios"]
            .map(|name| self.key(name))
            .into();
        for key in arrays {
            let shorter = match edit.meta.get(&key) {
                Some(Value::Array(Array::U32(v))) => Array::U32(v[..self.trunk].to_vec()),
                Some(Value::Array(Array::I32(v))) => Array::I32(v[..self.trunk].to_vec()),
                _ => continue,
            };
            edit.meta.set(&key, Value::Array(shorter));
        }
        edit.set(&self.key("block_count"), Value::U32(self.trunk as u32)).unset(&self.key("nextn_predict_layers"))
    }

    /// The head alone, by canonical names.
    pub fn head(&self) -> Edit {
        let own = self.prefix();
        self.edit.clone().drop(|n| !n.starts_with(&own))
    }
}

/// With the projection as two halves of these names.
pub fn halved(mut edit: Edit, embedding: &str, hidden: &str) -> Edit {
    let at = edit.tensors.iter().position(|t| t.name.ends_with("nextn.eh_proj.weight")).unwrap();
    let whole = edit.tensors.remove(at);
    let (d, row) = (whole.dims[1], whole.data.len() / whole.dims[1] as usize);
    for (part, name) in [embedding, hidden].into_iter().enumerate() {
        let rows = whole.data.chunks(row).flat_map(|r| r[part * row / 2..(part + 1) * row / 2].to_vec()).collect();
        let mut half = whole.clone();
        (half.name, half.dims, half.data) = (name.to_owned(), vec![d, d], rows);
        edit.tensors.insert(at + part, half);
    }
    edit
}

/// The files of a split set: metadata alone in the first one, tensors in the others.
pub fn shards(edit: &Edit, count: usize) -> Vec<Vec<u8>> {
    let total = edit.tensors.len();
    let part = total.div_ceil(count - 1);
    (0..count)
        .map(|no| {
            let mut meta = if no == 0 { edit.meta.clone() } else { Meta::new("shard") };
            meta.set("split.no", Value::U16(no as u16));
            meta.set("split.count", Value::U16(count as u16));
            meta.set("split.tensors.count", Value::I32(total as i32));
            let own = if no == 0 { 0..0 } else { (no - 1) * part..(no * part).min(total) };
            Edit { meta, tensors: edit.tensors[own].to_vec() }.bytes()
        })
        .collect()
}

/// A download cache that holds a split set: snapshots are relative links into blobs. Gives the snapshot's folder.
pub fn cache(root: &Path, edit: &Edit, count: usize) -> PathBuf {
    let repo = root.join("models--org--model");
    let snapshot = repo.join("snapshots").join(REVISION);
    fs::create_dir_all(repo.join("blobs")).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for (no, bytes) in shards(edit, count).iter().enumerate() {
        let digest = Sha256::of(bytes).to_string();
        fs::write(repo.join("blobs").join(&digest), bytes).unwrap();
        let name = format!("model-{:05}-of-{count:05}.gguf", no + 1);
        symlink(Path::new("../../blobs").join(digest), snapshot.join(name)).unwrap();
    }
    snapshot
}

/// A file in a folder.
pub fn write(dir: &Path, name: &str, edit: &Edit) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, edit.bytes()).unwrap();
    path
}

/// Flags that ask for nothing special.
pub fn flags(target: &Path, head: &Path, out: &Path) -> GraftFlags {
    GraftFlags {
        target: target.into(),
        head: head.into(),
        out: out.into(),
        link: Link::Auto,
        dialect: DialectFlag::C,
        dry_run: false,
        verify: false,
        smoke: false,
        rewrite_all: false,
        json: true,
    }
}

/// A folder with a target in a download cache and a head.
pub struct Place {
    /// Ends with the test.
    pub dir: TempDir,
    /// The snapshot.
    pub target: PathBuf,
    /// The head's file.
    pub head: PathBuf,
}

impl Place {
    /// Of these files.
    pub fn new(target: &Edit, head: &Edit) -> Self {
        let dir = TempDir::new().unwrap();
        let target = cache(dir.path(), target, 3);
        let head = write(dir.path(), "head.gguf", head);
        Self { dir, target, head }
    }

    /// Where the set goes.
    pub fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    /// Grafts.
    pub fn graft(&self, change: impl FnOnce(&mut GraftFlags)) -> Result<Report, PackError> {
        let mut flags = flags(&self.target, &self.head, &self.out());
        change(&mut flags);
        graft(&flags)
    }
}
