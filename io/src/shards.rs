//! A model as one tensor directory, whether it is one file, a set of shards, or bytes compiled into the program.
//!
//! What a path means:
//! - a directory with a `model-package.json`, or that file: the layer package;
//! - any other directory: the one model in it (files called `mtp-*` and `mmproj*` are companions and count only if alone);
//! - a file whose metadata speak of a split: its set, found by the file name `PREFIX-NNNNN-of-NNNNN.gguf`;
//! - any other file: itself, whatever its name looks like.
//!
//! Shard 1 decides: its metadata are the model's, its `split.count` and `split.tensors.count` hold. A later shard's
//! copies of those two may be stale (a graft by links leaves exactly that): a note, or a refusal when strict.
//! Sibling names come from the path as given, so a cache of symbolic links works; bytes come from the targets.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Read;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::gguf::read::part_hint;
use crate::gguf::{Gguf, Meta, TensorInfo, keys};
use crate::heap;
use crate::mmap::FileBytes;
use crate::package::{self, Package};
use crate::plain;
use crate::watch::OpenFile;

/// A cheap handle to a range of bytes that something keeps alive.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl Bytes {
    /// All bytes of `owner`.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let len = owner.as_ref().len();
        Self { owner: Arc::new(owner), range: 0..len }
    }

    /// A part of these bytes, sharing their owner.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.range.len(), "{range:?} of {} bytes", self.range.len());
        let start = self.range.start + range.start;
        Self { owner: self.owner.clone(), range: start..start + range.len() }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({} at {})", self.range.len(), self.range.start)
    }
}

/// How to open a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Map the files; otherwise read them into memory.
    pub mmap: bool,
    /// Refuse what would otherwise be a warning.
    pub strict: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { mmap: true, strict: false }
    }
}

/// One file of a model.
#[derive(Debug)]
pub struct Shard {
    /// Path as opened; a plain name for static bytes.
    pub path: PathBuf,
    /// Path with every symbolic link followed; equal to `path` for static bytes.
    pub real_path: PathBuf,
    /// Bytes of the file.
    pub bytes: Bytes,
    /// Modification time at opening, where the system has one.
    pub modified: Option<SystemTime>,
    /// Whether `bytes` are mapped pages of the file (as opposed to memory of this process).
    pub mapped: bool,
    /// Its own metadata; the model's are those of shard 0.
    pub meta: Meta,
    /// Where its data section starts.
    pub data_start: u64,
    /// Alignment of its tensors.
    pub alignment: u64,
    /// GGUF version, 2 or 3.
    pub version: u32,
    /// The open file, to be asked whether it changed. `None` for static bytes.
    file: Option<OpenFile>,
}

impl Shard {
    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// An opened model: metadata, tensor directory and data.
#[derive(Debug)]
pub struct ModelFile {
    shards: Vec<Shard>,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    notes: Vec<String>,
    pub(crate) package: Option<Arc<Package>>,
}

impl ModelFile {
    /// Opens the model that `path` means.
    ///
    /// # Errors
    /// Any [`Error`] about files, their bytes, or shards that do not belong together.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self> {
        if let Some(folder) = package::folder(path.as_ref()) {
            return package::open::open(&folder, options);
        }
        let resolved = resolve(path.as_ref())?;
        let path = &resolved[0];
        let (first, tensors) = open_file(path, options)?;
        let split = SplitKeys::read(&first.meta)?;
        if !split.is_shard() {
            return match resolved.len() {
                1 => Self::join(vec![(first, tensors)]),
                // Names that only look split: each is a model of its own.
                _ => Err(ambiguous(path.parent().unwrap_or(path), &resolved)),
            };
        }
        let Some(name) = SplitName::parse(path) else {
            return Err(Error::SplitName {
                file: first.name(),
                no: split.no.unwrap_or(0).saturating_add(1),
                count: split.count.unwrap_or(0),
            });
        };
        if name.no == 1 {
            return Self::open_set(&name, (first, tensors), options);
        }
        let first_path = name.sibling(1);
        if !plain::is_there(&first_path) {
            return Err(Error::SplitMissingShard { file: first_path.display().to_string(), no: 1, count: name.count });
        }
        drop((first, tensors));
        Self::open_set(&name, open_file(&first_path, options)?, options)
    }

    /// Opens all shards of a set whose first is open already.
    fn open_set(name: &SplitName, first: (Shard, Vec<TensorInfo>), options: OpenOptions) -> Result<Self> {
        let split = SplitKeys::read(&first.0.meta)?;
        let file = first.0.name();
        let mismatch = |file: &str, key: &str, found: Option<u64>, expected: String| Error::SplitMismatch {
            file: file.into(),
            key: key.into(),
            found: found.map_or("absent".into(), |n| n.to_string()),
            expected,
        };
        if split.count != Some(name.count) {
            let expected = format!("{} as in its file name", name.count);
            return Err(mismatch(&file, keys::SPLIT_COUNT, split.count, expected));
        }
        if split.no != Some(0) {
            return Err(mismatch(&file, keys::SPLIT_NO, split.no, "0 in the first shard".into()));
        }
        let mut parts = vec![first];
        let mut notes = Vec::new();
        for no in 2..=name.count {
            let path = name.sibling(no);
            if !plain::is_there(&path) {
                return Err(Error::SplitMissingShard { file: path.display().to_string(), no, count: name.count });
            }
            let (shard, tensors) = open_file(&path, options)?;
            let own = SplitKeys::read(&shard.meta)?;
            if own.no != Some(no - 1) {
                let expected = format!("{} as in its file name", no - 1);
                return Err(mismatch(&shard.name(), keys::SPLIT_NO, own.no, expected));
            }
            check_common_keys(&parts[0].0.meta, &shard.meta)?;
            for (key, found, expected) in
                [(keys::SPLIT_COUNT, own.count, split.count), (keys::SPLIT_TENSORS_COUNT, own.tensors, split.tensors)]
            {
                if let (Some(found), Some(expected)) = (found, expected)
                    && found != expected
                {
                    if options.strict {
                        let what = format!("{key} = {found} is stale, shard 1 says {expected}");
                        return Err(Error::Strict { file: shard.name(), what });
                    }
                    notes.push(format!(
                        "{} says {key} = {found}, the first shard says {expected} and counts: so it is where a graft linked \
                         shards that it left as they were",
                        shard.name()
                    ));
                }
            }
            parts.push((shard, tensors));
        }
        let union: u64 = parts.iter().map(|(_, t)| t.len() as u64).sum();
        if split.tensors != Some(union) {
            let expected = format!("{union}, the tensors of all {} shards", name.count);
            return Err(mismatch(&file, keys::SPLIT_TENSORS_COUNT, split.tensors, expected));
        }
        let mut model = Self::join(parts)?;
        model.notes = notes;
        Ok(model)
    }

    /// A model whose bytes live as long as the program; `name` stands for its path.
    ///
    /// # Errors
    /// Any [`Error`] about the bytes of one file.
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<Self> {
        let gguf = Gguf::parse(bytes, name)?;
        if SplitKeys::read(&gguf.meta)?.is_shard() {
            return Err(gguf
                .meta
                .inconsistent("split keys in an embedded model", "a whole model: join the shards first"));
        }
        Self::join(vec![shard(gguf, Bytes::new(bytes), name.into(), name.into(), None, false)])
    }

    /// Files as one directory of tensors; the first one's metadata are the model's.
    pub(crate) fn join(parts: Vec<(Shard, Vec<TensorInfo>)>) -> Result<Self> {
        let mut model =
            Self { shards: Vec::new(), tensors: Vec::new(), index: HashMap::new(), notes: Vec::new(), package: None };
        for (i, (shard, tensors)) in parts.into_iter().enumerate() {
            for mut t in tensors {
                t.shard = i as u32;
                if let Some(&other) = model.index.get(&t.name) {
                    return Err(Error::DuplicateTensor {
                        file: shard.name(),
                        tensor: t.name,
                        other: model.shards[model.tensors[other].shard as usize].name(),
                    });
                }
                model.index.insert(t.name.clone(), model.tensors.len());
                model.tensors.push(t);
            }
            model.shards.push(shard);
        }
        Ok(model)
    }

    /// The model's metadata: those of the first shard.
    pub fn meta(&self) -> &Meta {
        &self.shards[0].meta
    }

    /// All tensors, in shard order, then file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// A tensor by name that must be there.
    ///
    /// # Errors
    /// [`Error::MissingTensor`].
    pub fn require(&self, name: &str) -> Result<&TensorInfo> {
        self.tensor(name).ok_or_else(|| Error::MissingTensor { file: self.name(), tensor: name.into() })
    }

    /// The bytes of a tensor of this model, exactly `t.bytes` of them. Their address is a multiple of the shard's
    /// alignment for files (mapped or read); for static bytes only as far as the whole slice is aligned.
    ///
    /// # Panics
    /// If `t` is of another model.
    pub fn data(&self, t: &TensorInfo) -> Bytes {
        let start = t.start as usize;
        self.shards[t.shard as usize].bytes.slice(start..start + t.bytes as usize)
    }

    /// The same bytes to be read in order, without a mapped page of them: for what is passed on once, however large.
    ///
    /// # Panics
    /// If `t` is of another model.
    pub fn reader(&self, t: &TensorInfo) -> TensorReader<'_> {
        let shard = &self.shards[t.shard as usize];
        assert!(t.start + t.bytes <= shard.bytes.len() as u64, "{} is no tensor of {}", t.name, shard.name());
        TensorReader { shard, at: t.start, end: t.start + t.bytes }
    }

    /// The package that the files are artifacts of.
    pub fn package(&self) -> Option<&Package> {
        self.package.as_deref()
    }

    /// The files, first shard first.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The folder of a package, else the path of the first shard, for messages.
    pub fn name(&self) -> String {
        match &self.package {
            Some(package) => package.dir.display().to_string(),
            None => self.shards[0].name(),
        }
    }

    /// Bytes of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|s| s.bytes.len() as u64).sum()
    }

    /// Heap bytes of metadata and tensor directory.
    pub fn heap_bytes(&self) -> usize {
        let tensors = self.tensors.iter().map(|t| 2 * heap::block(t.name.len())).sum::<usize>();
        let directory = heap::vec(&self.tensors) + heap::map::<(String, usize)>(self.index.capacity()) + tensors;
        directory + self.shards.iter().map(|s| s.meta.heap_bytes()).sum::<usize>()
    }

    /// What a reader of the files might wonder at, and is as it should be.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Asks the system whether every file still has the size and time stamp it had at opening. Whoever goes on reading
    /// mapped bytes keeps a [`FileWatch`](crate::FileWatch).
    ///
    /// # Errors
    /// [`Error::FileChanged`], [`Error::Io`].
    pub fn check_unchanged(&self) -> Result<()> {
        self.shards.iter().filter_map(|s| s.file.as_ref()).try_for_each(OpenFile::check)
    }

    /// The files whose own pages the data are.
    pub(crate) fn mapped_files(&self) -> impl Iterator<Item = &OpenFile> {
        self.shards.iter().filter(|s| s.mapped).filter_map(|s| s.file.as_ref())
    }
}

/// The bytes of a tensor, from its file where they are mapped, else from memory.
#[derive(Debug)]
pub struct TensorReader<'a> {
    shard: &'a Shard,
    at: u64,
    end: u64,
}

impl Read for TensorReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = buffer.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..len];
        let n = match &self.shard.file {
            Some(file) if self.shard.mapped => file.read_at(buffer, self.at)?,
            _ => {
                buffer.copy_from_slice(&self.shard.bytes[self.at as usize..][..len]);
                len
            }
        };
        if n == 0 && len > 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.at += n as u64;
        Ok(n)
    }
}

/// The split keys of one file, whatever integer width they have.
#[derive(Clone, Copy, Debug)]
struct SplitKeys {
    no: Option<u64>,
    count: Option<u64>,
    tensors: Option<u64>,
}

impl SplitKeys {
    fn read(meta: &Meta) -> Result<Self> {
        Ok(Self {
            no: meta.get_u64(keys::SPLIT_NO)?,
            count: meta.get_u64(keys::SPLIT_COUNT)?,
            tensors: meta.get_u64(keys::SPLIT_TENSORS_COUNT)?,
        })
    }

    /// Whether the file is one of several. One of one is complete.
    fn is_shard(self) -> bool {
        self.count.unwrap_or(0) > 1 || self.no.unwrap_or(0) > 0
    }
}

/// `PREFIX-NNNNN-of-NNNNN.gguf`: five digits, number from 1 to the count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SplitName {
    /// Directory and name up to the last `-NNNNN-of-`.
    prefix: PathBuf,
    /// Which shard, from 1.
    pub no: u64,
    /// Shards of the set.
    pub count: u64,
}

impl SplitName {
    /// Reads the final component of a path; `None` if it is an ordinary name.
    pub fn parse(path: &Path) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let number =
            |s: &str| (s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse().ok()).flatten();
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, no) = rest.rsplit_once('-')?;
        let (no, count) = (number(no)?, number(count)?);
        (1..=count).contains(&no).then(|| Self { prefix: path.with_file_name(prefix), no, count })
    }

    /// Path of shard `no` of the same set.
    pub fn sibling(&self, no: u64) -> PathBuf {
        let mut path = self.prefix.clone().into_os_string();
        path.push(format!("-{no:05}-of-{:05}.gguf", self.count));
        path.into()
    }
}

/// Keys both shards hold must agree: a shard of another model with the right numbers is no part of this one.
fn check_common_keys(first: &Meta, later: &Meta) -> Result<()> {
    let own = [keys::SPLIT_NO, keys::SPLIT_COUNT, keys::SPLIT_TENSORS_COUNT, keys::ALIGNMENT];
    for (key, value) in later.iter().filter(|(key, _)| !own.contains(key)) {
        if let Some(expected) = first.get(key)
            && expected != value
        {
            return Err(Error::SplitMismatch {
                file: later.file().into(),
                key: key.into(),
                found: value.to_string(),
                expected: format!("{expected} as in {}", first.file()),
            });
        }
    }
    Ok(())
}

/// A path that may be a directory -> the file to open first, and the others of its directory that share its split name.
fn resolve(path: &Path) -> Result<Vec<PathBuf>> {
    if !plain::stat(path)?.is_dir() {
        return Ok(vec![path.into()]);
    }
    let failed = |source| Error::Io { file: path.display().to_string(), action: "list", source };
    // One entry per model: what looks like a split set is filed under its first shard's path.
    let mut models: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let hidden = file.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
        if hidden || file.extension().is_none_or(|e| !e.eq_ignore_ascii_case("gguf")) || file.is_dir() {
            continue;
        }
        let first = SplitName::parse(&file).map_or_else(|| file.clone(), |name| name.sibling(1));
        models.entry(first).or_default().push(file);
    }
    let is_companion = |p: &Path| {
        let name = p.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        name.starts_with("mtp-") || name.starts_with("mmproj")
    };
    if models.keys().any(|p| !is_companion(p)) {
        models.retain(|p, _| !is_companion(p));
    }
    if models.len() > 1 {
        return Err(ambiguous(path, models.keys()));
    }
    let (_, mut files) =
        models.pop_first().ok_or_else(|| Error::NoModelInDirectory { dir: path.display().to_string() })?;
    files.sort();
    Ok(files)
}

fn ambiguous<'a>(dir: &Path, choices: impl IntoIterator<Item = &'a PathBuf>) -> Error {
    let choices = choices.into_iter().map(|p| p.display().to_string()).collect();
    Error::AmbiguousDirectory { dir: dir.display().to_string(), choices }
}

/// One file, and its tensors.
pub(crate) fn open_file(path: &Path, options: OpenOptions) -> Result<(Shard, Vec<TensorInfo>)> {
    let name = path.display().to_string();
    let failed = |action| {
        let file = name.clone();
        move |source| Error::Io { file, action, source }
    };
    let (file, stat) = plain::open(path)?;
    let truncated = |present| Error::Truncated {
        file: name.clone(),
        what: "the file".into(),
        at: 0,
        needed: 24,
        present,
        hint: part_hint(&name),
    };
    if stat.len() == 0 {
        return Err(truncated(0));
    }
    let len = usize::try_from(stat.len()).map_err(|_| truncated(stat.len()))?;
    let bytes = if options.mmap { FileBytes::map(&file, len, &name)? } else { FileBytes::read(&file, len, &name)? };
    let file = OpenFile::new(&name, file, &stat);
    let parsed = Gguf::parse(bytes.as_ref(), &name);
    // Of a file that is being written, this is what is wrong with it, whatever its bytes look like.
    file.check()?;
    let gguf = parsed?;
    let real_path = fs::canonicalize(path).map_err(failed("resolve"))?;
    let mapped = bytes.is_mapped();
    let (mut shard, tensors) = shard(gguf, Bytes::new(bytes), path.into(), real_path, stat.modified().ok(), mapped);
    shard.file = Some(file);
    Ok((shard, tensors))
}

fn shard(
    gguf: Gguf,
    bytes: Bytes,
    path: PathBuf,
    real_path: PathBuf,
    modified: Option<SystemTime>,
    mapped: bool,
) -> (Shard, Vec<TensorInfo>) {
    let Gguf { version, alignment, data_start, meta, tensors } = gguf;
    (Shard { path, real_path, bytes, modified, mapped, meta, data_start, alignment, version, file: None }, tensors)
}

#[cfg(test)]
mod tests;
