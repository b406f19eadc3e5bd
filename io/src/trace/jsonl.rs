//! Our own recordings: JSON lines of schema `slipstream-trace/1`.
//!
//! ```text
//! {"schema":"slipstream-trace/1","id":"req_1","source":"recorded",          required, in every line
//!  "model":"m","model_sha256":"9f..","settings":{"temperature":0},          of the request that made the last turn,
//!  "tokenizer_sha256":"41..","seed":7,"prompt_tokens":[1,2],                each where it is known
//!  "finish_reason":"stop",
//!  "turns":[{"role":"user","text":"Hi"},                                    at least one
//!           {"role":"assistant","text":"Hello","output":true,"tokens":[3]}]}
//! ```
//!
//! | Field | Meaning |
//! |---|---|
//! | `id`, `source` | [`Session::id`], [`Session::source`] |
//! | `turns[].role` | `system` (or `developer`), `user`, `assistant`, `tool` (or `function`) |
//! | `turns[].text` | content; calls and thinking are not in it where `tool` and `reasoning` have them |
//! | `turns[].reasoning` | thinking that a client sent apart from the content |
//! | `turns[].output` | a model wrote it and it is to be replayed; false where absent; of `assistant` alone |
//! | `turns[].tokens` | every id as chosen, end token included; of outputs alone |
//! | `turns[].tool` | `{"calls":[{"id","name","arguments"}]}` of a call, `{"call_id","name"}` of an answer |
//! | the rest | [`super::Request`], of the last turn, which is an output then |
//!
//! Fields that are not named here are passed over.
//!
//! **Ids and text.** The text of an output is what its client was given, the ids are what the model chose. The text may
//! begin with a reasoning tag that the prompt ends in, and lacks end tokens, other hidden ones, and a stop string. Whose
//! ids they are `tokenizer_sha256` says.
//!
//! **One line a request.** A recorder writes a line when a request ends, with all turns that the client sent. A line
//! whose turns begin with all turns of an earlier session of the file, and go on, continues that session: the reader
//! makes one of both, whose outputs are the recorded ones of either. What is compared is what turns say; so a client that
//! sends back something else than it was given starts another session.
//!
//! **A torn end.** A recorder that is killed may leave its last line unfinished, which is known by its missing newline:
//! [`read`] passes that line over and says which it was. Anything else that is no record is an error.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::plain;

use super::read::parse as json;
use super::{Request, Role, Session, TraceError, Turn};

/// The schema that is read and written.
pub const SCHEMA: &str = "slipstream-trace/1";
/// A longer line is refused.
pub const LINE_BYTES_MAX: usize = 64 << 20;

/// One line, field by field.
#[derive(Deserialize)]
struct Line {
    id: String,
    source: String,
    #[serde(flatten)]
    request: Request,
    turns: Vec<Turn>,
}

/// What every line of the schema has, whatever else is wrong with it.
#[derive(Deserialize)]
struct Schema {
    #[serde(default)]
    schema: Option<serde_json::Value>,
}

/// The sessions of a file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Recording {
    /// In the order of their first lines.
    pub sessions: Vec<Session>,
    /// Number, from 1, of a last line that is torn and was passed over.
    pub torn: Option<usize>,
}

/// Reads a file and joins the lines of each session.
///
/// # Errors
/// [`TraceError`], naming file and line.
pub fn read(path: &Path) -> Result<Recording, TraceError> {
    let (file, _) = plain::open(path)?;
    join(BufReader::new(file), path.display().to_string())
}

/// The same from wherever the bytes come.
///
/// # Errors
/// [`TraceError`], naming `name` and the line.
pub fn join<R: BufRead>(input: R, name: String) -> Result<Recording, TraceError> {
    let mut joined = Joined::default();
    let mut torn = None;
    for record in lines(input, name) {
        match record {
            Ok(session) => joined.add(session),
            Err(TraceError::Torn { line, .. }) => torn = Some(line),
            Err(error) => return Err(error),
        }
    }
    Ok(Recording { sessions: joined.sessions, torn })
}

/// The records of `input` one by one, as they stand: no line is joined with another. Holds one line at a time. After an
/// error there is nothing more.
pub fn lines<R: BufRead>(input: R, name: String) -> impl Iterator<Item = Result<Session, TraceError>> {
    records(input, name.clone(), LINE_BYTES_MAX).map(move |line| {
        let Raw { bytes, ended, line } = line?;
        let unfinished = || serde_json::from_slice::<IgnoredAny>(&bytes).is_err_and(|error| error.is_eof());
        if !ended && unfinished() {
            return Err(TraceError::Torn { file: name.clone(), line });
        }
        parse(&bytes, &format!("{name}:{line}"))
    })
}

/// A line of a file.
pub(crate) struct Raw {
    /// Its bytes, without the newline.
    pub bytes: Vec<u8>,
    /// Whether a newline ended it.
    pub ended: bool,
    /// Number, from 1.
    pub line: usize,
}

/// The lines of `input` that are not blank, each at most `limit` bytes long.
pub(crate) fn records<R: BufRead>(
    mut input: R,
    name: String,
    limit: usize,
) -> impl Iterator<Item = Result<Raw, TraceError>> {
    let mut number = 0;
    let mut failed = false;
    std::iter::from_fn(move || {
        while !failed {
            number += 1;
            let mut bytes = Vec::new();
            // One byte more than allowed, and the newline.
            let read = io::Read::take(&mut input, limit as u64 + 1).read_until(b'\n', &mut bytes);
            let ended = bytes.last() == Some(&b'\n');
            if ended {
                bytes.pop();
            }
            let error = match read {
                Err(source) => TraceError::Io { file: name.clone(), action: "read it", source },
                Ok(0) => return None,
                Ok(_) if bytes.len() > limit => TraceError::LongLine { file: name.clone(), line: number, limit },
                Ok(_) if bytes.trim_ascii().is_empty() => continue,
                Ok(_) => return Some(Ok(Raw { bytes, ended, line: number })),
            };
            failed = true;
            return Some(Err(error));
        }
        None
    })
}

/// One line, checked.
fn parse(bytes: &[u8], place: &str) -> Result<Session, TraceError> {
    let value =
        |what: String, found: String, expected| TraceError::Value { place: place.to_owned(), what, found, expected };
    let Schema { schema } = json(bytes, place)?;
    match schema {
        Some(serde_json::Value::String(text)) if text == SCHEMA => {}
        Some(other) => return Err(value("schema".into(), other.to_string(), "\"slipstream-trace/1\"")),
        None => return Err(value("schema".into(), "absent".into(), "\"slipstream-trace/1\"")),
    }
    let Line { id, source, mut request, turns } = json(bytes, place)?;
    if turns.is_empty() {
        return Err(value("turns".into(), "empty".into(), "at least one turn"));
    }
    for (index, turn) in turns.iter().enumerate() {
        if turn.output && turn.role != Role::Assistant {
            let found = format!("true of a turn of {}", turn.role.name());
            return Err(value(format!("turns[{index}].output"), found, "an output of the assistant"));
        }
        if turn.tokens.is_some() && !turn.output {
            let found = "given of a turn that is no output".to_owned();
            return Err(value(format!("turns[{index}].tokens"), found, "tokens of outputs alone"));
        }
    }
    request.turn = turns.len() - 1;
    let known = request != Request { turn: request.turn, ..Request::default() };
    if known && !turns[request.turn].output {
        let what = format!("turns[{}].output", request.turn);
        let expected = "true, since the line says what request made its last turn";
        return Err(value(what, "false".into(), expected));
    }
    let requests = if known { vec![request] } else { Vec::new() };
    Ok(Session { id, source, turns, requests })
}

/// Sessions under way, found again by their turns.
#[derive(Default)]
struct Joined {
    sessions: Vec<Session>,
    /// Hash of all turns of a session -> its index. A session whose turns hash alike hides the earlier one.
    whole: HashMap<u64, usize>,
}

impl Joined {
    fn add(&mut self, line: Session) {
        let hashes = prefix_hashes(&line.turns);
        // The longest session that the line goes on from.
        let continued = (1..line.turns.len()).rev().find_map(|len| {
            let &index = self.whole.get(&hashes[len])?;
            let turns = &self.sessions[index].turns;
            let same = turns.len() == len && turns.iter().zip(&line.turns).all(|(a, b)| a.says(b));
            same.then_some((index, len))
        });
        let whole = hashes[line.turns.len()];
        let Some((index, len)) = continued else {
            self.whole.insert(whole, self.sessions.len());
            self.sessions.push(line);
            return;
        };
        self.whole.remove(&hashes[len]);
        self.whole.insert(whole, index);
        let session = &mut self.sessions[index];
        session.turns.extend(line.turns.into_iter().skip(len));
        session.requests.extend(line.requests);
    }
}

/// Hash of the first n turns, for every n.
fn prefix_hashes(turns: &[Turn]) -> Vec<u64> {
    let mut hasher = DefaultHasher::new();
    let mut hashes = vec![hasher.finish()];
    for turn in turns {
        (turn.role, &turn.text, &turn.reasoning).hash(&mut hasher);
        hashes.push(hasher.finish());
    }
    hashes
}

/// Writes a session: one line for every request that is known, each with the turns up to its output, and what stands
/// behind the last one, or is all there is, as a line of its own.
///
/// # Errors
/// What the writer says.
pub fn write(out: &mut impl Write, session: &Session) -> io::Result<()> {
    for request in &session.requests {
        write_line(out, session, request.turn + 1, request)?;
    }
    let written = session.requests.last().map_or(0, |request| request.turn + 1);
    if written < session.turns.len() {
        write_line(out, session, session.turns.len(), &Request::default())?;
    }
    Ok(())
}

/// Serialises the first `turns` turns and writes them in one call, newline included, so that what a file holds is whole
/// lines for as long as the system writes what it takes.
fn write_line(out: &mut impl Write, session: &Session, turns: usize, request: &Request) -> io::Result<()> {
    #[derive(Serialize)]
    struct Out<'a> {
        schema: &'static str,
        id: &'a str,
        source: &'a str,
        #[serde(flatten)]
        request: &'a Request,
        turns: &'a [Turn],
    }
    let Session { id, source, turns: all, .. } = session;
    let line = Out { schema: SCHEMA, id, source, request, turns: &all[..turns] };
    let mut bytes = serde_json::to_vec(&line)?;
    bytes.push(b'\n');
    out.write_all(&bytes)
}
