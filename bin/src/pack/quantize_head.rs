//! `quantize-head`: an MTP head in a smaller type. Of a model with a head in it the head alone is written anew; every
//! other tensor keeps its bytes, and files without a tensor of the head are linked, not copied.

use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use engine::model::head;
use engine::model::load::{LoadOptions, Planned};
use engine::model::requantize::{self, Fate, Loss};
use engine::model::{Config, ModelError, MtpStatus};
use engine_io::compat::is_top_level_head;
use engine_io::digest::Sha256;
use engine_io::gguf::TensorInfo;
use engine_io::gguf::write::Layout;
use engine_io::made::made;
use engine_io::shards::Shard;
use engine_io::{ModelFile, OpenOptions, TensorType};
use serde::Serialize;

use super::error::PackError;
use super::graft;
use super::output::Output;
use super::progress::Progress;

/// Weights that one thread turns at a time.
const PIECE: usize = 1 << 18;

/// Flags of the verb.
#[derive(Clone, Debug, Args)]
pub struct QuantizeHeadFlags {
    /// A head in a file of its own, or a model with a head in it (any shard of a split one, or its directory)
    #[arg(long, value_name = "FILE")]
    pub head: PathBuf,
    /// Type of the head's matrices; norms, routers and gates stay, mixers of residual streams keep 8 bits
    #[arg(long, value_name = "T", value_parser = type_named)]
    pub r#type: TensorType,
    /// The new file; for a split model the new directory
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Quantise matrices that are quantised already once more, which loses more than doing it from the published head
    #[arg(long)]
    pub allow_requantize: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn type_named(name: &str) -> Result<TensorType, String> {
    let all = || requantize::types().map(TensorType::name);
    let found = requantize::types().find(|ty| ty.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("expected one of {}", all().collect::<Vec<_>>().join(", ")))
}

/// What was written.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// What was read.
    pub head: String,
    /// What was written.
    pub out: String,
    /// The type asked for.
    pub r#type: &'static str,
    /// Bytes of the head's tensors before.
    pub bytes_before: u64,
    /// And now.
    pub bytes: u64,
    /// The head's tensors.
    pub tensors: Vec<Quantised>,
    /// Tensors that are none of the head's.
    pub others: usize,
    /// Those of them whose bytes were copied, each compared by its SHA-256.
    pub copied: usize,
    /// Files that were linked as they are.
    pub linked: Vec<String>,
}

/// A tensor of the head.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Quantised {
    /// Its name.
    pub name: String,
    /// Its type before.
    pub from: &'static str,
    /// And now.
    pub to: &'static str,
    /// Why it is not the type asked for.
    pub reason: Option<&'static str>,
    /// Squared error by squared values.
    pub nmse: f64,
    /// Bytes now.
    pub bytes: u64,
}

/// Runs the verb.
///
/// # Errors
/// [`PackError`]: no head, tensors that are quantised already, values that are no numbers, files that cannot be written.
pub fn run(flags: &QuantizeHeadFlags) -> Result<Report, PackError> {
    let model = ModelFile::open(&flags.head, OpenOptions::default())?;
    super::refuse_package(&model)?;
    let (alone, is_head) = head_of(&model)?;
    let fates = fates(&model, &is_head, flags)?;
    let shards = model.shards().len();
    let rewritten: Vec<bool> =
        (0..shards).map(|i| model.tensors().iter().any(|t| t.shard as usize == i && is_head(&t.name))).collect();
    let mut layouts = Vec::new();
    for (i, shard) in model.shards().iter().enumerate() {
        let layout =
            if rewritten[i] { Some(layout(&model, i, shard, &fates, alone.then_some(flags.r#type))?) } else { None };
        layouts.push(layout);
    }
    let bytes = layouts.iter().flatten().map(Layout::file_bytes).sum();
    let output = if shards == 1 { Output::file(&flags.out, bytes)? } else { Output::directory(&flags.out, bytes)? };
    let progress = Progress::bytes("quantising", bytes, flags.json);
    let mut losses = vec![Loss::default(); fates.len()];
    let mut linked = Vec::new();
    let failed = PackError::writing(&flags.out);
    for (i, (shard, layout)) in model.shards().iter().zip(layouts).enumerate() {
        let name = shard.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(layout) = layout else {
            graft::hard_link(&shard.real_path, &output.path().join(&name), "an --out where files may be linked")?;
            linked.push(name);
            continue;
        };
        let mut writer = layout.start(output.writer(&name)?).map_err(&failed)?;
        for (t, (fate, loss)) in model.tensors().iter().zip(fates.iter().zip(&mut losses)) {
            if t.shard as usize != i {
                continue;
            }
            match fate {
                Some(Fate::To(to, _)) => {
                    let mut rows = Rows::new(model.reader(t), model.name(), t, *to);
                    writer.tensor(made(|ready| rows.refill(ready))).map_err(&failed)?;
                    *loss = rows.loss;
                }
                _ => writer.tensor(model.reader(t)).map_err(&failed)?,
            }
            progress.add(t.bytes);
        }
        writer.finish().map_err(&failed)?.flush().map_err(PackError::output(&flags.out, "write"))?;
    }
    drop(progress);
    model.check_unchanged()?;
    let first = model.shards()[0].path.file_name().unwrap_or_default().to_os_string();
    let path = if shards == 1 { output.path().to_owned() } else { output.path().join(first) };
    let copied = verify(&model, &path, &fates, &rewritten, alone)?;
    let report = report(&model, flags, (&fates, &losses), copied, linked);
    output.finish()?;
    Ok(report)
}

/// Whether the file is a head alone, and which tensors are the head's.
fn head_of(model: &ModelFile) -> Result<(bool, impl Fn(&str) -> bool + use<>), PackError> {
    let config = Config::read(model.meta())?;
    let options = LoadOptions::default();
    // A head that contradicts itself is refused as it is, not once it has been written again.
    let (alone, unusable) = match Planned::new(model, None, options) {
        Err(ModelError::Sidecar { .. }) => {
            Planned::sidecar(model, options)?;
            (true, None)
        }
        Err(error) => return Err(error.into()),
        Ok(planned) => match planned.plan.mtp {
            MtpStatus::Unavailable(reason) => (false, Some(reason)),
            MtpStatus::Own | MtpStatus::Sidecar => (false, None),
        },
    };
    let own = format!("blk.{}.", config.trunk);
    let is_head = move |name: &str| match alone {
        // Copies of what its model has are not drafted with.
        true => !["token_embd.weight", "output.weight", "output_norm.weight"].contains(&name),
        false => name.starts_with(&own) || is_top_level_head(name),
    };
    match (model.tensors().iter().any(|t| is_head(&t.name)), unusable) {
        (true, None) => Ok((alone, is_head)),
        (true, Some(reason)) => Err(PackError::Refused(reason)),
        (false, _) => Err(PackError::Refused(format!(
            "{}: has no blk.{}.* tensors, so there is no MTP head to quantise; give a head, or a model with one",
            model.name(),
            config.trunk
        ))),
    }
}

/// Per tensor of the file: what becomes of it, `None` for those that are not the head's.
fn fates(
    model: &ModelFile,
    is_head: &impl Fn(&str) -> bool,
    flags: &QuantizeHeadFlags,
) -> Result<Vec<Option<Fate>>, PackError> {
    let mut out = Vec::new();
    let (mut lower, mut unread) = (Vec::new(), Vec::new());
    for t in model.tensors() {
        let fate = is_head(&t.name).then(|| requantize::fate(t, flags.r#type, flags.allow_requantize));
        if fate == Some(Fate::Lower) {
            lower.push(format!("{} ({})", t.name, t.ty));
        }
        if matches!(fate, Some(Fate::To(..))) && !requantize::can_read(t.ty) {
            unread.push(format!("{} ({})", t.name, t.ty));
        }
        out.push(fate);
    }
    let refuse = |names: &[String], what: &str| {
        let more = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
        Err(PackError::Refused(format!("{}: {}{more} {what}", model.name(), names[0])))
    };
    if !unread.is_empty() {
        return refuse(&unread, "cannot be read here; use the head as it was published");
    }
    if !lower.is_empty() {
        let what = "quantised already, expected F32, F16 or BF16: what was lost cannot be had back; use the head as it was \
                    published, or --allow-requantize";
        return refuse(&lower, what);
    }
    Ok(out)
}

/// One file anew. `alone`: it is a head, of which most will be of this type.
fn layout(
    model: &ModelFile,
    number: usize,
    shard: &Shard,
    fates: &[Option<Fate>],
    alone: Option<TensorType>,
) -> Result<Layout, PackError> {
    let mut meta = shard.meta.clone();
    if let (Some(ty), 0) = (alone, number) {
        head::set_type(&mut meta, ty);
    }
    let mut layout = Layout::new(meta)?;
    for (t, fate) in model.tensors().iter().zip(fates).filter(|(t, _)| t.shard as usize == number) {
        layout.tensor(&t.name, t.dims(), type_after(t, fate))?;
    }
    Ok(layout)
}

fn type_after(t: &TensorInfo, fate: &Option<Fate>) -> TensorType {
    match fate {
        Some(Fate::To(ty, _)) => *ty,
        _ => t.ty,
    }
}

/// Opens what was written and compares it: names and dimensions of all tensors, bytes of those that are not to change.
/// Gives how many of the model's own tensors were compared by their digests.
fn verify(
    before: &ModelFile,
    path: &Path,
    fates: &[Option<Fate>],
    rewritten: &[bool],
    alone: bool,
) -> Result<usize, PackError> {
    let wrong = |what: String| PackError::Unverified(format!("{}: {what}", path.display()));
    let after = ModelFile::open(path, OpenOptions::default())?;
    if after.tensors().len() != before.tensors().len() {
        return Err(wrong(format!("{} tensors, expected {}", after.tensors().len(), before.tensors().len())));
    }
    let mut copied = 0;
    for ((t, fate), now) in before.tensors().iter().zip(fates).zip(after.tensors()) {
        if (&t.name, t.dims(), type_after(t, fate)) != (&now.name, now.dims(), now.ty) {
            return Err(wrong(format!("tensor {} has become {} {:?} {}", t.name, now.name, now.dims(), now.ty)));
        }
        if matches!(fate, Some(Fate::To(..))) || !rewritten[t.shard as usize] {
            continue;
        }
        let digest = |model, t| Sha256::of_tensor(model, t, |_| {});
        if digest(before, t)? != digest(&after, now)? {
            return Err(wrong(format!("the bytes of tensor {} have changed", t.name)));
        }
        copied += usize::from(fate.is_none());
    }
    let options = LoadOptions::default();
    let planned = if alone { Planned::sidecar(&after, options) } else { Planned::new(&after, None, options) };
    planned.map_err(|error| wrong(format!("does not load: {error}")))?;
    Ok(copied)
}

fn report(
    model: &ModelFile,
    flags: &QuantizeHeadFlags,
    (fates, losses): (&[Option<Fate>], &[Loss]),
    copied: usize,
    linked: Vec<String>,
) -> Report {
    let mut tensors = Vec::new();
    let (mut bytes_before, mut others) = (0, 0);
    for ((t, fate), loss) in model.tensors().iter().zip(fates).zip(losses) {
        let Some(kind) = fate else {
            others += 1;
            continue;
        };
        let to = type_after(t, fate);
        let reason = match kind {
            Fate::To(_, reason) => *reason,
            Fate::Keep(reason) => Some(*reason),
            Fate::Lower => None,
        };
        let bytes = to.row_bytes(t.row_len()).unwrap_or(0) * t.rows();
        bytes_before += t.bytes;
        let (name, from, to) = (t.name.clone(), t.ty.name(), to.name());
        tensors.push(Quantised { name, from, to, reason, nmse: loss.nmse(), bytes });
    }
    Report {
        head: model.name(),
        out: flags.out.display().to_string(),
        r#type: flags.r#type.name(),
        bytes_before,
        bytes: tensors.iter().map(|t| t.bytes).sum(),
        tensors,
        others,
        copied,
        linked,
    }
}

/// For people.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    for t in &report.tensors {
        let change = if t.from == t.to { t.from.to_owned() } else { format!("{} to {}", t.from, t.to) };
        let loss = if t.nmse > 0.0 { format!("NMSE {:.2e}", t.nmse) } else { String::from("exact") };
        let reason = t.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        let _ = writeln!(out, "  {:<44} {change:<14} {:>12} bytes, {loss}{reason}", t.name, t.bytes);
    }
    let _ = writeln!(out, "{}: the head took {} bytes and takes {}", report.out, report.bytes_before, report.bytes);
    let _ = writeln!(
        out,
        "{} other tensors are unchanged: {} were copied and compared, files linked: {}",
        report.others,
        report.copied,
        if report.linked.is_empty() { String::from("none") } else { report.linked.join(", ") }
    );
    out
}

/// The rows of a tensor in another type. Rows know nothing of each other, so threads share them.
struct Rows<R> {
    source: R,
    from: TensorType,
    to: TensorType,
    file: String,
    name: String,
    row_len: usize,
    /// Bytes of a row before and after.
    row: (usize, usize),
    /// Rows of a piece.
    piece: usize,
    /// Rows that are still to be read.
    left: usize,
    raw: Vec<u8>,
    loss: Loss,
}

impl<R: Read> Rows<R> {
    fn new(source: R, file: String, t: &TensorInfo, to: TensorType) -> Self {
        let row_len = t.row_len() as usize;
        let bytes = |ty: TensorType| ty.row_bytes(t.row_len()).expect("a type that its rows fit") as usize;
        Self {
            source,
            from: t.ty,
            to,
            file,
            name: t.name.clone(),
            row_len,
            row: (bytes(t.ty), bytes(to)),
            piece: (PIECE / row_len).max(1),
            left: t.rows() as usize,
            raw: Vec::new(),
            loss: Loss::default(),
        }
    }

    /// Turns the next rows into `ready`, a piece for each thread; none are left at the end.
    fn refill(&mut self, ready: &mut Vec<u8>) -> io::Result<()> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (before, after) = self.row;
        let rows = self.left.min(threads * self.piece);
        self.raw.resize(rows * before, 0);
        self.source.read_exact(&mut self.raw)?;
        ready.resize(rows * after, 0);
        let (from, to, row_len) = (self.from, self.to, self.row_len);
        let pieces = self.raw.chunks(self.piece * before).zip(ready.chunks_mut(self.piece * after));
        let results: Vec<_> = std::thread::scope(|scope| {
            let turn = move |(bytes, out): (&[u8], &mut [u8])| {
                let weights = bytes.len() / before * row_len;
                requantize::rows((from, bytes), (to, out), weights)
            };
            let started: Vec<_> = pieces.map(|piece| scope.spawn(move || turn(piece))).collect();
            started.into_iter().map(|thread| thread.join().expect("rows do not panic")).collect()
        });
        for result in results {
            let loss = result.map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{}: tensor {} {error}", self.file, self.name))
            })?;
            self.loss.add(loss);
        }
        self.left -= rows;
        Ok(())
    }
}
