//! The memory of a whole process: what the engine plans for itself, and what stands around it. Written down before any
//! weight is read; `engine-pack inspect` prints it and `engine-serve` holds it against `--memory-limit`.

use std::fmt::Write as _;

use engine::exec::{ExecOptions, KvType};
use engine::limits::{Limits, LimitsError};
use engine::memory::{FileSize, Held, Memory, Part, Place};
use engine::model::load::{Planned, Repack};
use engine::tick::Thread;
use engine_io::ModelFile;
use engine_io::text::{TemplateLimits, Tokenizer};

use crate::flags::CHECKPOINTS_MAX;
use crate::serve::{self, Bounds, limits};
use crate::stage::conn::READ_BYTES;
use crate::stage::door::GUESTS_MAX;
use crate::stage::handshake::BODY_BYTES;

/// Stack of a thread where `RUST_MIN_STACK` does not say. Source: Rust's `std::thread`, "Stack size".
const STACK_BYTES: usize = 2 << 20;
/// Threads beside the schedule's and the workers: front, text, signals, and the one that watches files.
const OTHER_THREADS: usize = 4;

/// What memory depends on.
pub struct Subject<'a> {
    /// The model, or a sidecar alone.
    pub file: &'a ModelFile,
    /// Its weights lie in the program itself.
    pub built_in: bool,
    /// The MTP sidecar.
    pub draft: Option<&'a ModelFile>,
    /// What is to be loaded.
    pub planned: &'a Planned,
    /// `None` for a file without one that can be used.
    pub tokenizer: Option<&'a Tokenizer>,
}

/// How it is to be run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Which matrices are copied.
    pub repack: Repack,
    /// Capacities.
    pub limits: Limits,
    /// Arithmetic and workers.
    pub options: ExecOptions,
    /// Bounds of the front.
    pub bounds: Bounds,
    /// Whether requests are recorded.
    pub record: bool,
    /// Checkpoints that were asked for; `None`: as [`checkpoints`] says.
    pub checkpoints: Option<usize>,
}

/// Checkpoints of a prefix cache where no flag says how many: a quarter of the KV cache's bytes; for a stage twice as many
/// as there are requests, as both stages hold as many whatever blocks they have.
pub fn checkpoints(planned: &Planned, limits: &Limits, options: &ExecOptions) -> usize {
    match (limits.prefix_cache, planned.plan.stage.is_whole()) {
        (false, _) => 0,
        (true, true) => Memory::checkpoints(&planned.plan, limits, options).min(CHECKPOINTS_MAX),
        (true, false) => 2 * limits.slots,
    }
}

/// Everything a server of `subject` holds.
///
/// # Errors
/// Limits that contradict each other.
pub fn plan(subject: &Subject<'_>, setting: &Setting) -> Result<Memory, LimitsError> {
    plan_as(subject, setting, false)
}

/// The same; `mapped` as if all files were mapped.
fn plan_as(subject: &Subject<'_>, setting: &Setting, mapped: bool) -> Result<Memory, LimitsError> {
    let Subject { file, built_in, draft, planned, tokenizer } = *subject;
    let Setting { repack, ref limits, ref options, ref bounds, record, .. } = *setting;
    let size = |name, file: &ModelFile, draft: bool, in_program: bool| FileSize {
        name,
        draft,
        bytes: file.file_bytes() as usize,
        held: if in_program || mapped || file.shards().iter().all(|s| s.mapped) { Held::File } else { Held::Memory },
    };
    let mut files = vec![size("model files", file, false, built_in)];
    files.extend(draft.map(|draft| size("draft files", draft, true, false)));
    let mut memory = Memory::of_plan(&planned.plan, &files, repack, limits, options)?;
    if planned.plan.alone {
        return Ok(memory);
    }
    let stage = planned.plan.stage;
    if !stage.is_whole() {
        // The rows of a pass: as they are put together, as a frame, and as they have come.
        let width = planned.plan.program.width(planned.plan.program.received.unwrap_or(planned.plan.program.hidden));
        memory.parts.push(Part::memory("messages between stages", 3 * size_of::<f32>() * limits.step_rows * width));
    }
    let metadata = file.heap_bytes() + draft.map_or(0, ModelFile::heap_bytes);
    memory.parts.push(Part::loading("metadata", metadata));
    if let Some(tokenizer) = tokenizer.filter(|_| stage.is_first()) {
        memory.parts.extend([
            Part::memory("tokenizer", tokenizer.heap_bytes()),
            Part::loading("checks of the tokenizer", tokenizer.checking_bytes()),
            Part::memory("token pieces", crate::open::pieces(tokenizer).heap_bytes()),
            Part::bound("vocabulary of grammars", serve::vocabulary_bytes(tokenizer.len(), piece_bytes(tokenizer))),
            Part::bound("grammars", serve::grammar_bytes(limits.slots)),
            Part::bound("grammars kept", serve::GRAMMARS_KEPT_BYTES),
            Part::bound("prompts remembered", serve::remembered_bytes()),
        ]);
    }
    // Clients come to the first stage, which comes to the last.
    if stage.is_first() {
        memory.parts.extend(front(limits, bounds));
    } else {
        memory.parts.push(Part::bound("handshakes", GUESTS_MAX * (BODY_BYTES + READ_BYTES)));
    }
    if record && stage.is_first() {
        let (body, values) = (bounds.body_limit(limits.context), values_bytes());
        let rows = limits.slots + limits.waiting;
        let records = serve::record_bytes(limits.slots, rows, limits.context, body, values);
        memory.parts.push(Part::bound("records being written", records));
    }
    let threads = options.threads + Thread::COUNT + OTHER_THREADS + usize::from(record);
    memory.parts.push(Part::bound("thread stacks", threads * STACK_BYTES));
    Ok(memory)
}

fn piece_bytes(tokenizer: &Tokenizer) -> usize {
    (0..tokenizer.len() as u32).map(|id| tokenizer.pieces().bytes(id).len()).sum()
}

/// What clients can make the front hold, or a host that has no sockets.
fn front(engine: &Limits, bounds: &Bounds) -> [Part; 3] {
    let connections = bounds.connections + limits::CONNECTIONS_RESERVED + limits::CONNECTIONS_TURNED_AWAY;
    let connection = bounds.head_bytes + limits::PIPELINE_BYTES + bounds.stream_buffer;
    let streams = match bounds.connections {
        0 => Part::bound("events that wait for the host", (engine.waiting + engine.slots) * bounds.stream_buffer),
        _ => Part::bound("connections", connections * connection),
    };
    let bodies = bounds.bodies_limit(engine.context);
    [
        streams,
        Part::bound("answers being read", bounds.answers_bytes),
        Part::bound("requests being read", bodies + values_bytes() + TemplateLimits::default().output_bytes),
    ]
}

/// The values of the largest body.
fn values_bytes() -> usize {
    limits::JSON_VALUES * size_of::<serde_json::Value>()
}

/// `123456789` as `117.7 MiB`.
pub fn human(bytes: usize) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = (bytes.max(1).ilog2() as usize / 10).min(UNITS.len() - 1);
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{:.1} {}", bytes as f64 / (1u64 << (10 * unit)) as f64, UNITS[unit]),
    }
}

/// The table for people: a line for every room that is not empty, and sums.
pub fn table(memory: &Memory) -> String {
    let mut out = String::new();
    let sections = [
        (Held::Memory, "memory with all slots full"),
        (Held::Loading, "before that, while loading"),
        (Held::File, "mapped files, given back at need"),
        (Held::Bound, "at most beyond that, at need"),
    ];
    for (held, title) in sections {
        for part in memory.parts.iter().filter(|p| p.held == held && p.bytes > 0) {
            let _ = writeln!(out, "  {:<40}{:>12}", part.name, human(part.bytes));
        }
        if memory.sum(held) > 0 {
            let _ = writeln!(out, "{title:<42}{:>12}", human(memory.sum(held)));
        }
    }
    out
}

/// Bytes of the weights that are read in the files.
pub fn read_in_place(memory: &Memory) -> usize {
    memory.tensors.iter().filter(|t| t.place == Place::File).map(|t| t.bytes).sum()
}

/// What would make `setting` fit into `most` bytes of memory, the least painful first: what each flag alone would have
/// to be, and, where none is enough alone, which of them together. `planned` is what `setting` takes now.
pub fn advice(subject: &Subject<'_>, setting: &Setting, planned: &Memory, most: usize) -> Vec<String> {
    let needs = |setting: &Setting, mapped| {
        let mut setting = setting.clone();
        if setting.checkpoints.is_none() {
            setting.limits.checkpoints = checkpoints(subject.planned, &setting.limits, &setting.options);
        }
        plan_as(subject, &setting, mapped).map_or(usize::MAX, |m| m.peak())
    };
    let resized =
        |from: &Setting, slots, context| Setting { limits: from.limits.resized(slots, context), ..from.clone() };
    let Limits { slots, context, .. } = setting.limits;
    let (mut out, mut enough) = (Vec::new(), false);
    let mut offer = |flag: &str, bytes: usize| {
        let saved = planned.peak().saturating_sub(bytes);
        if saved > 0 {
            enough |= bytes <= most;
            let fits = if bytes <= most { "fits" } else { "does not fit alone" };
            out.push(format!("{flag} saves {}: {fits}", human(saved)));
        }
        saved > 0
    };
    // What costs no request anything is taken together first.
    let (mut lowered, mut mapped, mut flags) = (setting.clone(), false, Vec::new());
    let without_copies = Setting { repack: Repack::Off, ..setting.clone() };
    if setting.repack != Repack::Off && offer("--repack off", needs(&without_copies, false)) {
        lowered.repack = Repack::Off;
        flags.push("--repack off".to_owned());
    }
    let mut forgetful = setting.clone();
    (forgetful.limits.prefix_cache, forgetful.limits.checkpoints, forgetful.checkpoints) = (false, 0, Some(0));
    if setting.limits.prefix_cache && offer("--no-prefix-cache", needs(&forgetful, false)) {
        (lowered.limits, lowered.checkpoints) = (forgetful.limits, forgetful.checkpoints);
        flags.push("--no-prefix-cache".to_owned());
    }
    let context_fit = largest(2, context, |n| needs(&resized(setting, slots, n), false) <= most).unwrap_or(2);
    let slots_fit = largest(1, slots, |n| needs(&resized(setting, n, context), false) <= most).unwrap_or(1);
    if context_fit < context {
        offer(&format!("--ctx-size {context_fit}"), needs(&resized(setting, slots, context_fit), false));
    }
    if slots_fit < slots {
        offer(&format!("--parallel {slots_fit}"), needs(&resized(setting, slots_fit, context), false));
    }
    let half = ExecOptions { kv_type: KvType::F16, ..setting.options };
    if setting.options.kv_type == KvType::F32
        && offer("--kv-type f16", needs(&Setting { options: half, ..setting.clone() }, false))
    {
        lowered.options = half;
        flags.push("--kv-type f16".to_owned());
    }
    if subject.file.shards().iter().any(|s| !s.mapped) && !subject.built_in {
        const MAPPED: &str = "mapping the file (no --no-mmap)";
        offer(MAPPED, needs(setting, true));
        mapped = true;
        flags.push(MAPPED.to_owned());
    }
    if enough {
        return out;
    }
    // Then fewer requests, and for the last one fewer tokens.
    let fits = |slots, context| needs(&resized(&lowered, slots, context), mapped) <= most;
    let slots_left = largest(1, slots, |n| fits(n, context)).unwrap_or(1);
    let context_left = largest(2, context, |n| fits(slots_left, n)).unwrap_or(2);
    if slots_left < slots {
        flags.push(format!("--parallel {slots_left}"));
    }
    if context_left < context {
        flags.push(format!("--ctx-size {context_left}"));
    }
    let bytes = needs(&resized(&lowered, slots_left, context_left), mapped);
    let fits = if bytes <= most { "fits" } else { "does not fit: the limit is too low for this model" };
    out.push(format!("{} together take {}: {fits}", flags.join(", "), human(bytes)));
    out
}

/// The largest number of `least..=most` that fits, if fitting ends once.
fn largest(least: usize, most: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    if !fits(least) {
        return None;
    }
    let (mut low, mut high) = (least, most);
    while low < high {
        let middle = high - (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Some(low)
}

/// A size that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeFlag {
    /// As it was written.
    pub typed: String,
    /// What that is.
    pub bytes: usize,
}

impl SizeFlag {
    /// Reads a flag.
    ///
    /// # Errors
    /// As [`parse_size`].
    pub fn parse(text: &str) -> Result<Self, String> {
        Ok(Self { typed: text.to_owned(), bytes: parse_size(text)? })
    }
}

/// Bytes of a flag: a number, and K, M or G for powers of 1000, or KiB, MiB or GiB for powers of 1024.
///
/// # Errors
/// What is expected.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let expected = || {
        format!(
            "{text:?} is no size: expected bytes above 0, such as 8589934592, or with a unit: 8GiB, 8192MiB, 8G \
                 (K, M, G are powers of 1000; KiB, MiB, GiB of 1024)"
        )
    };
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor: usize = match text[digits..].trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return Err(expected()),
    };
    let number: usize = text[..digits].parse().map_err(|_| expected())?;
    number.checked_mul(factor).filter(|&bytes| bytes > 0).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("1", 1),
            ("12345B", 12345),
            ("7k", 7000),
            ("3M", 3_000_000),
            ("2G", 2_000_000_000),
            ("4KiB", 4096),
            ("5 MiB", 5 << 20),
            ("6gib", 6 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "0", "0G", "-1", "1.5G", "G", "8Gi", "8T", "99999999999999999999", "99999999999G", "8GiBs", "0x10"]
        {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains(&format!("{text:?}")) && error.contains("8GiB"), "{error}");
        }
    }

    #[test]
    fn bytes_are_written_for_people() {
        let texts = [0, 1023, 1024, 1536 << 10, usize::MAX].map(human);
        assert_eq!(texts, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "16384.0 PiB"]);
    }

    #[test]
    fn the_largest_that_fits_is_found() {
        for at in 3..20 {
            assert_eq!(largest(3, 19, |n| n <= at), Some(at.min(19)));
        }
        assert_eq!(largest(3, 19, |_| false), None);
    }
}
