//! Finds and reads recordings, whoever made them: by content, or as a caller says.
//!
//! A folder is walked, in the order of names; files in it that are no recordings (licences, say) are passed over and
//! named. A file that is asked for by name has to be one.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::plain;

use super::{Session, TraceError, aider, jsonl, openai, openhands, swe_agent, tau_bench};

/// A document beyond this is refused; of JSON lines it is the limit of each.
pub const DOCUMENT_BYTES_MAX: usize = jsonl::LINE_BYTES_MAX;

/// What wrote a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// This engine: [`super::jsonl`].
    Slipstream,
    /// Anything that writes lines of OpenAI-style messages: [`super::openai`].
    Openai,
    /// SWE-agent: [`super::swe_agent`].
    SweAgent,
    /// mini-swe-agent: [`super::swe_agent`].
    MiniSweAgent,
    /// OpenHands: [`super::openhands`].
    Openhands,
    /// tau-bench: [`super::tau_bench`].
    TauBench,
    /// aider: [`super::aider`].
    Aider,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Slipstream,
        Self::Openai,
        Self::SweAgent,
        Self::MiniSweAgent,
        Self::Openhands,
        Self::TauBench,
        Self::Aider,
    ];

    /// Its name, as flags spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slipstream => "slipstream",
            Self::Openai => "openai",
            Self::SweAgent => "swe-agent",
            Self::MiniSweAgent => "mini-swe-agent",
            Self::Openhands => "openhands",
            Self::TauBench => "tau-bench",
            Self::Aider => "aider",
        }
    }

    /// Whether each line is a document of its own.
    fn lines(self) -> bool {
        matches!(self, Self::Slipstream | Self::Openai | Self::Openhands)
    }
}

/// A file that was read.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    /// The file.
    pub path: PathBuf,
    /// What wrote it.
    pub format: Format,
    /// Its sessions, in order.
    pub sessions: Vec<Session>,
    /// Number, from 1, of a last line that its recorder did not finish; it was passed over.
    pub torn: Option<usize>,
}

/// What paths led to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Found {
    /// The recordings.
    pub traces: Vec<Trace>,
    /// Files of folders that are none.
    pub passed_over: Vec<PathBuf>,
}

/// Reads every recording that `paths` mean, as `format`, or as what they hold.
///
/// # Errors
/// The first file that cannot be read, or is no recording though it was named itself.
pub fn load(paths: &[PathBuf], format: Option<Format>) -> Result<Found, TraceError> {
    let mut found = Found::default();
    for path in paths {
        let mut files = Vec::new();
        let folder = path.is_dir();
        if folder {
            walk(path, &mut HashSet::new(), &mut files)?;
        } else {
            files.push(path.clone());
        }
        let before = found.traces.len();
        for file in files {
            let known = match format {
                Some(format) => Some(format),
                None => detect(&file)?,
            };
            match known {
                Some(format) => found.traces.push(read(&file, format)?),
                None if folder => found.passed_over.push(file),
                None => return Err(TraceError::Unknown { file: file.display().to_string() }),
            }
        }
        if found.traces.len() == before {
            return Err(TraceError::Nothing { dir: path.display().to_string() });
        }
    }
    Ok(found)
}

/// The files under a folder, in the order of their names. What links lead to a second time is `seen` already: a link back
/// up would lead round and round, and sessions that are read twice would count twice.
fn walk(dir: &Path, seen: &mut HashSet<(u64, u64)>, files: &mut Vec<PathBuf>) -> Result<(), TraceError> {
    let stat = fs::metadata(dir).map_err(TraceError::io(dir, "examine it"))?;
    if !seen.insert((stat.dev(), stat.ino())) {
        return Ok(());
    }
    let entries = fs::read_dir(dir).map_err(TraceError::io(dir, "list it"))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(TraceError::io(dir, "list it"))?.path());
    }
    paths.sort();
    for path in paths {
        // Links to nothing, pipes and the like are no recordings.
        let Ok(stat) = fs::metadata(&path) else { continue };
        if stat.is_dir() {
            walk(&path, seen, files)?;
        } else if stat.is_file() && seen.insert((stat.dev(), stat.ino())) {
            files.push(path);
        }
    }
    Ok(())
}

/// Reads one file.
fn read(path: &Path, format: Format) -> Result<Trace, TraceError> {
    let (file, _) = plain::open(path)?;
    import(BufReader::new(file), format, path)
}

/// Reads what stands in the file `path`, from wherever its bytes come.
///
/// # Errors
/// Whatever is no recording of `format`.
pub fn import(input: impl BufRead, format: Format, path: &Path) -> Result<Trace, TraceError> {
    let place = path.display().to_string();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let whole = |input| document(input, path);
    let mut torn = None;
    let sessions = match format {
        Format::Slipstream => {
            let recording = jsonl::join(input, place)?;
            torn = recording.torn;
            recording.sessions
        }
        Format::Openai => by_line(input, &place, &name, openai::session)?,
        Format::Openhands => by_line(input, &place, &name, openhands::session)?,
        Format::SweAgent => vec![swe_agent::trajectory(&whole(input)?, &place, &name)?],
        Format::MiniSweAgent => vec![swe_agent::mini(&whole(input)?, &place, &name)?],
        Format::TauBench => tau_bench::sessions(&whole(input)?, &place)?,
        Format::Aider => aider::sessions(&text(path, whole(input)?)?, &name),
    };
    Ok(Trace { path: path.to_owned(), format, sessions, torn })
}

fn by_line(
    input: impl BufRead,
    place: &str,
    name: &str,
    session: impl Fn(&[u8], &str, &str) -> Result<Session, TraceError>,
) -> Result<Vec<Session>, TraceError> {
    let lines = jsonl::records(input, place.to_owned(), DOCUMENT_BYTES_MAX);
    lines
        .map(|raw| {
            let jsonl::Raw { bytes, line, .. } = raw?;
            session(&bytes, &format!("{place}:{line}"), &format!("{name}:{line}"))
        })
        .collect()
}

/// The whole of a file.
fn document(input: impl io::Read, path: &Path) -> Result<Vec<u8>, TraceError> {
    let mut bytes = Vec::new();
    let read = input.take(DOCUMENT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
    read.map_err(TraceError::io(path, "read it"))?;
    if bytes.len() > DOCUMENT_BYTES_MAX {
        return Err(TraceError::LongDocument { file: path.display().to_string(), limit: DOCUMENT_BYTES_MAX });
    }
    Ok(bytes)
}

fn text(path: &Path, bytes: Vec<u8>) -> Result<String, TraceError> {
    String::from_utf8(bytes).map_err(|error| TraceError::NotUtf8 {
        file: path.display().to_string(),
        offset: error.utf8_error().valid_up_to(),
    })
}

/// One JSON document.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8], place: &str) -> Result<T, TraceError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        TraceError::json(place, &path, error.inner())
    })?;
    json.end().map_err(|error| TraceError::json(place, "", &error))?;
    Ok(parsed)
}

/// What the fields of a document are called.
type Fields = BTreeMap<String, IgnoredAny>;

#[derive(Deserialize)]
struct History {
    history: Vec<Fields>,
}

/// What a file holds. Of JSON lines the first decides.
///
/// # Errors
/// A file that cannot be read.
pub fn detect(path: &Path) -> Result<Option<Format>, TraceError> {
    let (file, _) = plain::open(path)?;
    let place = path.display().to_string();
    let first = jsonl::records(BufReader::new(file), place, DOCUMENT_BYTES_MAX).next();
    let bytes = match first {
        // What is in no line cannot be told by one; the rest of the file need not be read.
        None | Some(Err(TraceError::LongLine { .. })) => return Ok(None),
        Some(raw) => raw?.bytes,
    };
    // Its first line may be all there is, and torn.
    if bytes.starts_with(format!("{{\"schema\":\"{}\"", jsonl::SCHEMA).as_bytes()) {
        return Ok(Some(Format::Slipstream));
    }
    if let Ok(fields) = serde_json::from_slice::<Fields>(&bytes) {
        let format = of_object(&fields, &bytes);
        return Ok(format.filter(|format| format.lines() || !several_lines(path)));
    }
    let (file, _) = plain::open(path)?;
    let bytes = match document(file, path) {
        Err(TraceError::LongDocument { .. }) => return Ok(None),
        bytes => bytes?,
    };
    Ok(match bytes.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice(&bytes)
            .ok()
            .and_then(|fields| of_object(&fields, &bytes))
            .filter(|format| !format.lines()),
        Some(b'[') => serde_json::from_slice::<Vec<Fields>>(&bytes).ok().and_then(|list| {
            let first = list.first()?;
            let has = |name| first.contains_key(name);
            match () {
                () if has("traj") => Some(Format::TauBench),
                () if has("role") => Some(Format::MiniSweAgent),
                () => None,
            }
        }),
        _ => std::str::from_utf8(&bytes).ok().filter(|text| aider::is_log(text)).map(|_| Format::Aider),
    })
}

/// What an object of these fields is a recording of.
fn of_object(fields: &Fields, bytes: &[u8]) -> Option<Format> {
    let has = |name| fields.contains_key(name);
    if has("schema") && has("turns") {
        return Some(Format::Slipstream);
    }
    if has("history") {
        let history = serde_json::from_slice::<History>(bytes).map(|found| found.history).unwrap_or_default();
        let chat = history.first().is_some_and(|entry| entry.contains_key("role"));
        return Some(if chat { Format::SweAgent } else { Format::Openhands });
    }
    if has("messages") {
        let mini = has("trajectory_format") || has("info");
        return Some(if mini { Format::MiniSweAgent } else { Format::Openai });
    }
    None
}

/// Whether there is more than the first line: a document in one line ends with it.
fn several_lines(path: &Path) -> bool {
    let Ok((file, _)) = plain::open(path) else { return false };
    jsonl::records(BufReader::new(file), String::new(), DOCUMENT_BYTES_MAX).nth(1).is_some()
}
