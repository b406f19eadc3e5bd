//! The files of the new set: which are written again, which are placed, and the writing.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write as _};
use std::path::Path;

use engine::model::graft::{Bytes, GraftPlan, Half, KeyEdit};
use engine_io::ModelFile;
use engine_io::digest::{Digested, Sha256, Tee};
use engine_io::gguf::write::Layout;
use engine_io::gguf::{Meta, TensorInfo, Value, keys};
use engine_io::shards::{SplitName, TensorReader};
use serde::Serialize;

use super::place::{self, Link};
use crate::pack::error::PackError;
use crate::pack::output::Output;
use crate::pack::progress::Progress;

/// How a file of the set comes about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardAction {
    /// Written with other metadata.
    Rewritten,
    /// Written anew.
    Head,
    /// Placed by a clone.
    Reflinked,
    /// Placed by a hard link.
    HardLinked,
    /// Placed by a symbolic link.
    Symlinked,
    /// Placed by a copy.
    Copied,
    /// Placed by a clone, or else by a hard link.
    Linked,
}

impl ShardAction {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rewritten => "written with new metadata",
            Self::Head => "the head, written",
            Self::Reflinked => "cloned",
            Self::HardLinked => "hard link",
            Self::Symlinked => "symbolic link",
            Self::Copied => "copied",
            Self::Linked => "cloned, or a hard link",
        }
    }

    /// Whether its bytes are the source's without having been read.
    pub fn is_linked(self) -> bool {
        matches!(self, Self::Reflinked | Self::HardLinked | Self::Symlinked)
    }

    fn of(link: Link) -> Self {
        match link {
            Link::Auto => Self::Linked,
            Link::Hard => Self::HardLinked,
            Link::Reflink => Self::Reflinked,
            Link::Copy => Self::Copied,
            Link::Symlink => Self::Symlinked,
        }
    }
}

/// A file of the set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Shard {
    /// Its name in the directory.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// How it comes about.
    pub action: ShardAction,
    /// The real file that it was made from.
    pub source: String,
}

/// What was written.
pub struct Done {
    /// Files in order.
    pub shards: Vec<Shard>,
    /// Digests of the files that were written, in the same order.
    pub files: Vec<Option<Sha256>>,
    /// Digests of the head's tensors as they were read, in the plan's order.
    pub read: Vec<Sha256>,
}

/// The set, before anything of it is there.
pub struct Set<'a> {
    target: &'a ModelFile,
    head: &'a ModelFile,
    plan: &'a GraftPlan,
    prefix: String,
    /// Per shard of the target: its new header, if it is written again.
    layouts: Vec<Option<Layout>>,
    last: Layout,
    edits: Vec<KeyEdit>,
}

impl<'a> Set<'a> {
    /// Lays out every file.
    ///
    /// # Errors
    /// [`PackError`]: what the format cannot hold.
    pub fn new(
        target: &'a ModelFile,
        head: &'a ModelFile,
        plan: &'a GraftPlan,
        rewrite_all: bool,
    ) -> Result<Self, PackError> {
        let shards = target.shards();
        let count = shards.len() + 1;
        let tensors = target.tensors().len() + plan.tensors.len();
        let (Ok(count_u16), Ok(tensors_i32)) = (u16::try_from(count), i32::try_from(tensors)) else {
            let what = format!("{}: {count} shards with {tensors} tensors", target.name());
            return Err(PackError::Refused(format!("{what} are more than a split set can count; join shards first")));
        };
        let split = |no: u16| {
            [
                (keys::SPLIT_NO, Value::U16(no)),
                (keys::SPLIT_COUNT, Value::U16(count_u16)),
                (keys::SPLIT_TENSORS_COUNT, Value::I32(tensors_i32)),
            ]
        };
        let mut edits = plan.edits.clone();
        let mut layouts = Vec::with_capacity(shards.len());
        for (no, shard) in shards.iter().enumerate() {
            if no > 0 && !rewrite_all {
                layouts.push(None);
                continue;
            }
            let mut meta = if no == 0 { plan.apply(&shard.meta) } else { shard.meta.clone() };
            for (key, to) in split(no as u16) {
                let from = meta.get(key).cloned();
                if no == 0 && from.as_ref() != Some(&to) {
                    edits.push(KeyEdit { key: key.to_owned(), from, to: to.clone() });
                }
                meta.set(key, to);
            }
            let mut layout = Layout::new(meta)?;
            for t in of_shard(target, no) {
                layout.tensor(&t.name, t.dims(), t.ty)?;
            }
            layouts.push(Some(layout));
        }
        let first = &shards[0];
        let mut meta = Meta::new("the head's shard");
        for (key, value) in split(count_u16 - 1) {
            meta.set(key, value);
        }
        if let Some(alignment) = first.meta.get(keys::ALIGNMENT) {
            meta.set(keys::ALIGNMENT, alignment.clone());
        }
        let mut last = Layout::new(meta)?;
        for t in &plan.tensors {
            last.tensor(&t.info.name, t.info.dims(), t.info.ty)?;
        }
        Ok(Self { target, head, plan, prefix: prefix(&first.path), layouts, last, edits })
    }

    /// Keys of the first shard that change.
    pub fn edits(&self) -> &[KeyEdit] {
        &self.edits
    }

    /// The real files of shards that are placed.
    pub fn placed(&self) -> Vec<&Path> {
        let shards = self.target.shards().iter().zip(&self.layouts);
        shards.filter(|(_, layout)| layout.is_none()).map(|(s, _)| s.real_path.as_path()).collect()
    }

    /// The files in order, placed ones as `link` will have it.
    pub fn shards(&self, link: Link) -> Vec<Shard> {
        let count = self.layouts.len() + 1;
        let name = |no: usize| format!("{}-{:05}-of-{count:05}.gguf", self.prefix, no + 1);
        let mut out = Vec::with_capacity(count);
        for (no, (shard, layout)) in self.target.shards().iter().zip(&self.layouts).enumerate() {
            let (bytes, action) = match layout {
                Some(layout) => (layout.file_bytes(), ShardAction::Rewritten),
                None => (shard.bytes.len() as u64, ShardAction::of(link)),
            };
            out.push(Shard { name: name(no), bytes, action, source: shard.real_path.display().to_string() });
        }
        let source = self.head.shards()[0].real_path.display().to_string();
        out.push(Shard { name: name(count - 1), bytes: self.last.file_bytes(), action: ShardAction::Head, source });
        out
    }

    /// Bytes that will be written.
    pub fn bytes_written(&self, link: Link) -> u64 {
        let written = |s: &&Shard| matches!(s.action, ShardAction::Rewritten | ShardAction::Head | ShardAction::Copied);
        self.shards(link).iter().filter(written).map(|s| s.bytes).sum()
    }

    /// Writes and places everything.
    ///
    /// # Errors
    /// [`PackError`].
    pub fn write(&self, output: &Output, link: Link, progress: &Progress) -> Result<Done, PackError> {
        let mut shards = self.shards(link);
        let mut files = Vec::with_capacity(shards.len());
        for (no, (shard, layout)) in self.target.shards().iter().zip(&self.layouts).enumerate() {
            let name = &shards[no].name;
            let path = output.path().join(name);
            let failed = PackError::writing(&path);
            let file = match layout {
                Some(layout) => {
                    let mut to = layout.clone().start(Tee::new(output.writer(name)?)).map_err(&failed)?;
                    for t in of_shard(self.target, no) {
                        to.tensor(self.target.reader(t)).map_err(&failed)?;
                        progress.add(t.bytes);
                    }
                    Some(closed(to.finish().map_err(&failed)?, &path)?)
                }
                None => {
                    let used = place::place(&shard.real_path, &path, link, |n| progress.add(n))?;
                    shards[no].action = ShardAction::of(used);
                    None
                }
            };
            files.push(file);
        }
        let name = &shards[shards.len() - 1].name;
        let path = output.path().join(name);
        let failed = PackError::writing(&path);
        let mut to = self.last.clone().start(Tee::new(output.writer(name)?)).map_err(&failed)?;
        let mut read = Vec::with_capacity(self.plan.tensors.len());
        for t in &self.plan.tensors {
            let mut source = Digested::new(progress.reader(source(self.head, &t.from)));
            to.tensor(&mut source).map_err(&failed)?;
            read.push(source.digest());
        }
        files.push(Some(closed(to.finish().map_err(&failed)?, &path)?));
        Ok(Done { shards, files, read })
    }
}

/// A small file of the output.
///
/// # Errors
/// [`PackError::Output`].
pub fn text(output: &Output, name: &str, text: &str) -> Result<(), PackError> {
    let mut file = output.writer(name)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.flush())
        .map_err(PackError::output(&output.path().join(name), "write"))
}

fn closed(tee: Tee<BufWriter<File>>, path: &Path) -> Result<Sha256, PackError> {
    let (mut file, digest, _) = tee.finish();
    file.flush().map_err(PackError::output(path, "write"))?;
    Ok(digest)
}

/// Tensors of a shard, in file order of its directory.
fn of_shard(model: &ModelFile, no: usize) -> impl Iterator<Item = &TensorInfo> {
    model.tensors().iter().filter(move |t| t.shard as usize == no)
}

/// The name of a set: that of its first file without number and ending.
fn prefix(first: &Path) -> String {
    let stem = first.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match SplitName::parse(first) {
        Some(_) => stem[..stem.len() - "-00001-of-00001".len()].to_owned(),
        None => stem,
    }
}

/// The bytes of a new tensor.
pub fn source<'a>(head: &'a ModelFile, from: &Bytes) -> Box<dyn Read + 'a> {
    let tensor = |name: &str| head.tensor(name).expect("planned from this file");
    match from {
        Bytes::Of(name) => Box::new(head.reader(tensor(name))),
        Bytes::Rows(a, b) => {
            let (a, b) = (tensor(a), tensor(b));
            Box::new(Rows {
                parts: [(head.reader(a), a.row_bytes()), (head.reader(b), b.row_bytes())],
                part: 0,
                left: a.row_bytes(),
            })
        }
        Bytes::Columns(name, half) => {
            let t = tensor(name);
            Box::new(Columns { from: head.reader(t), half: t.row_bytes() / 2, which: *half, left: 0 })
        }
    }
}

/// Rows of two tensors in turn.
struct Rows<'a> {
    parts: [(TensorReader<'a>, u64); 2],
    part: usize,
    /// Of the row that is being read.
    left: u64,
}

impl Read for Rows<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            self.part = 1 - self.part;
            self.left = self.parts[self.part].1;
        }
        let n = (&mut self.parts[self.part].0).take(self.left).read(buffer)?;
        self.left -= n as u64;
        Ok(n)
    }
}

/// A half of every row of a tensor.
struct Columns<'a> {
    from: TensorReader<'a>,
    /// Bytes of a half.
    half: u64,
    which: Half,
    /// Of the half that is being read.
    left: u64,
}

impl Read for Columns<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let others = |from: &mut TensorReader<'_>, half| io::copy(&mut from.take(half), &mut io::sink());
        if self.left == 0 && self.which == Half::Hidden {
            others(&mut self.from, self.half)?;
        }
        if self.left == 0 {
            self.left = self.half;
        }
        let n = (&mut self.from).take(self.left).read(buffer)?;
        self.left -= n as u64;
        if self.left == 0 && self.which == Half::Embedding {
            others(&mut self.from, self.half)?;
        }
        Ok(n)
    }
}
