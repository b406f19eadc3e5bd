//! record: what was asked and what was answered, one line a choice, in the schema of [`engine_io::trace::jsonl`].
//!
//! ```text
//!  text ──Line──► [bounded queue] ── record ──► DIR/SECONDS-PID.jsonl
//! ```
//!
//! `text` only tries to hand a line over: one without room is lost, counted and said. The thread makes the JSON, from the
//! body as the client sent it, and writes every line in one call, so that a process that is killed leaves whole lines and
//! at most one that is torn. A write that fails ends the recording and not the server.
//!
//! A choice is recorded when it ends, however it ends, if it was admitted: with every token that was chosen, sent or not,
//! and all text that they wrote. The line of a cancelled one waits for the engine's last word.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use crossbeam::channel::{self, Receiver, Sender};
use engine::ids::TokenId;
use engine_io::digest::Sha256;
use engine_io::trace::jsonl::{self, LINE_BYTES_MAX};
use engine_io::trace::{Request, Role, Session, Turn};
use serde_json::{Map, Value, json};

use crate::serve::answers::Dialect;
use crate::serve::api::Api;
use crate::serve::json;
use crate::serve::link::Body;
use crate::serve::metrics::End;
use crate::serve::model::TextModel;
use crate::serve::params::Params;
use crate::serve::{anthropic, chat, responses};

/// Lines that wait to be written.
const QUEUE_LINES: usize = 256;
/// Bytes of their bodies, prompts and outputs; one that is longer waits alone.
pub(crate) const QUEUE_BYTES: usize = 64 << 20;
/// `Session::source` of what is recorded here.
const SOURCE: &str = "recorded";
/// Fields of a chat's body that change the prompt and are no turn; they are recorded as they came. Requests of other
/// dialects are recorded with what makes the same prompt of a chat.
pub(crate) const PROMPT_FIELDS: [&str; 8] = [
    "tools",
    "tool_choice",
    "chat_template_kwargs",
    "enable_thinking",
    "reasoning_effort",
    "reasoning",
    "add_generation_prompt",
    "continue_final_message",
];

/// Bytes that a recorded server may hold beyond others, but for the bodies: `rows` choices run or wait, `context` tokens
/// each, `slots` of which have written something; a line is made while others wait.
pub(crate) fn bytes_for(slots: usize, rows: usize, context: usize, body: usize, values: usize) -> usize {
    let id = size_of::<TokenId>();
    let text = super::limits::BODY_BYTES_PER_TOKEN;
    let held = rows.saturating_mul(context).saturating_mul(id);
    let written = slots.saturating_mul(context).saturating_mul(id + text);
    [held, written, QUEUE_BYTES, body, values, LINE_BYTES_MAX].into_iter().fold(0, usize::saturating_add)
}

/// A new file of records.
#[derive(Debug)]
pub struct RecordFile {
    file: File,
    path: PathBuf,
}

impl RecordFile {
    /// `folder/SECONDS-PID.jsonl`, for the owner alone. The folder is made if it is not there.
    ///
    /// # Errors
    /// If that cannot be written; the error names it.
    pub fn create(folder: &Path) -> io::Result<Self> {
        let named = |path: &Path, e: io::Error| {
            let text = format!("--record: cannot write {}: {e}; give a folder that can be written", path.display());
            io::Error::new(e.kind(), text)
        };
        if !folder.is_dir() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|e| named(folder, e))?;
        }
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let path = folder.join(format!("{seconds}-{}.jsonl", std::process::id()));
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
        Ok(Self { file: file.map_err(|e| named(&path, e))?, path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What the lines of one request have in common.
pub(crate) struct Asked {
    /// Name of the answer.
    pub id: String,
    pub dialect: Dialect,
    pub body: Body,
    /// Ids of every prompt; choice `i` answers prompt `i / params.n`.
    pub prompts: Vec<Vec<TokenId>>,
    /// Per prompt: the reasoning tag that the answer of a chat begins with.
    pub lead: Vec<String>,
    pub params: Params,
    /// All choices of all prompts.
    pub choices: usize,
}

/// What a choice has said so far.
#[derive(Default)]
pub(crate) struct Written {
    pub text: String,
    pub tokens: Vec<TokenId>,
}

impl Written {
    pub(crate) fn add(&mut self, text: &str, tokens: &[TokenId]) {
        self.text.push_str(text);
        self.tokens.extend_from_slice(tokens);
    }
}

/// A choice that has ended.
pub(crate) struct Line {
    pub asked: Arc<Asked>,
    pub index: usize,
    pub written: Written,
    pub end: End,
}

impl Line {
    fn bytes(&self) -> usize {
        let prompt = &self.asked.prompts[self.index / self.asked.params.n];
        let ids = prompt.len() + self.written.tokens.len();
        self.asked.body.len() + ids * size_of::<TokenId>() + self.written.text.len()
    }

    /// The session of this one request.
    fn session(&self, facts: &Facts) -> Session {
        let Asked { id, dialect, body, prompts, lead, params, choices } = &*self.asked;
        let prompt = &prompts[self.index / params.n];
        // It was read once, and so it can be read, in the same way.
        let body = json::parse_object(body).unwrap_or_default();
        let mut settings = settings(params, *dialect, self.index % params.n);
        let mut text = self.written.text.clone();
        // The client got it as part of the answer, or as thinking, and sends it back as that.
        text.insert_str(0, &lead[self.index / params.n]);
        let (mut turns, fields) = match *dialect {
            Dialect::Chat => chat::recorded(&body, &facts.api),
            Dialect::Messages => anthropic::recorded(&body, &facts.api),
            Dialect::Responses => responses::recorded(&body, &facts.api),
            Dialect::Completion => {
                let text = prompt_text(&body, self.index / params.n, prompt, facts);
                (vec![Turn::new(Role::User, text)], Map::new())
            }
        };
        settings.extend(fields);
        let ids = |tokens: &[TokenId]| Some(tokens.iter().map(|t| t.0).collect());
        turns.push(Turn { tokens: ids(&self.written.tokens), ..Turn::output(text) });
        let request = Request {
            turn: turns.len() - 1,
            model: Some(facts.model_id.clone()),
            model_sha256: Some(facts.digests.tensors.to_string()),
            tokenizer_sha256: facts.digests.tokenizer.map(|digest| digest.to_string()),
            settings: Some(settings),
            seed: Some(params.sampling.seed),
            prompt_tokens: ids(prompt),
            finish_reason: Some(self.end.name().to_owned()),
        };
        let id = if *choices == 1 { id.clone() } else { format!("{id}#{}", self.index) };
        Session { id, source: SOURCE.to_owned(), turns, requests: vec![request] }
    }
}

/// The prompt of a completion as text: as it came, or what its ids say.
fn prompt_text(body: &Map<String, Value>, index: usize, ids: &[TokenId], facts: &Facts) -> String {
    let sent = match body.get("prompt") {
        Some(Value::Array(list)) => list.get(index),
        prompt => prompt,
    };
    match sent {
        Some(Value::String(text)) => text.clone(),
        _ => {
            let bytes: Vec<u8> = ids.iter().flat_map(|t| facts.model.piece(*t)).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }
}

/// Sampling, stopping and drafting in effect, under the names of the request's fields; `endpoint` and `choice` beside.
fn settings(params: &Params, dialect: Dialect, choice: usize) -> Map<String, Value> {
    let s = &params.sampling;
    let banned = |add: f32| if add == f32::NEG_INFINITY { Value::Bool(false) } else { json::real(add) };
    let settings = json!({
        "endpoint": dialect.endpoint(),
        "choice": choice,
        "max_tokens": params.max_tokens,
        "temperature": json::real(s.temperature),
        "top_k": s.top_k,
        "typical_p": json::real(s.typical_p),
        "top_p": json::real(s.top_p),
        "min_p": json::real(s.min_p),
        "repeat_penalty": json::real(s.repeat_penalty),
        "repeat_last_n": if s.repeat_last_n == u32::MAX { -1 } else { i64::from(s.repeat_last_n) },
        "presence_penalty": json::real(s.presence_penalty),
        "frequency_penalty": json::real(s.frequency_penalty),
        "logit_bias": s.logit_bias.iter().map(|e| json!([e.token.0, banned(e.add)])).collect::<Vec<_>>(),
        "stop": params.stop_text,
        "stop_token_ids": params.stop.tokens.iter().map(|t| t.0).collect::<Vec<_>>(),
        "ignore_eos": params.stop.ignore_eos,
        "min_tokens": params.stop.min_tokens,
        "include_stop_str_in_output": params.stop.include,
        "speculative": params.speculation.effective_json(),
    });
    let Value::Object(settings) = settings else { unreachable!("built as an object") };
    settings
}

/// Which model answers, whatever it is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digests {
    /// Of all its tensors.
    pub tensors: Sha256,
    /// Of its token list; `None` where it has none.
    pub tokenizer: Option<Sha256>,
}

/// What all lines of a server have in common.
pub(crate) struct Facts {
    pub model: Arc<dyn TextModel>,
    pub model_id: String,
    pub digests: Digests,
    pub api: Arc<Api>,
}

/// What became of the lines; for the metrics.
#[derive(Default, Debug)]
pub(crate) struct Counts {
    pub written: AtomicU64,
    pub lost: AtomicU64,
    pub stopped: AtomicBool,
    queued_bytes: AtomicUsize,
}

impl Counts {
    /// One line less than there could be. Said once, and again when it has become many more.
    fn lose(&self, why: &str) {
        let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
        if lost.is_power_of_two() {
            tracing::warn!(lost, why, "a request was not recorded");
        }
    }
}

/// The near end of the queue.
pub(crate) struct Recorder {
    lines: Sender<Line>,
    pub counts: Arc<Counts>,
}

impl Recorder {
    /// Starts the thread; it ends when the recorder is gone and everything is written.
    ///
    /// # Errors
    /// If there is no thread.
    pub(crate) fn start(file: RecordFile, facts: Facts) -> io::Result<(Self, JoinHandle<()>)> {
        let (lines, taken) = channel::bounded(QUEUE_LINES);
        let counts = Arc::new(Counts::default());
        tracing::info!(file = %file.path.display(), "recording");
        let RecordFile { file, path } = file;
        let writer = Writer { file, path, good: 0, counts: Arc::clone(&counts) };
        let run = move || write_all(writer, &facts, &taken);
        let thread = thread::Builder::new().name("record".to_owned()).spawn(run)?;
        Ok((Self { lines, counts }, thread))
    }

    /// Hands a line over, or loses it. Does not wait.
    pub(crate) fn add(&self, line: Line) {
        if self.counts.stopped.load(Ordering::Relaxed) {
            return self.counts.lose("the recording has stopped");
        }
        let (bytes, queued) = (line.bytes(), &self.counts.queued_bytes);
        let fits = |held: usize| (held == 0 || held.saturating_add(bytes) <= QUEUE_BYTES).then_some(held + bytes);
        if queued.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            return self.counts.lose("too many bytes wait to be written");
        }
        if self.lines.try_send(line).is_err() {
            queued.fetch_sub(bytes, Ordering::Relaxed);
            self.counts.lose("too many lines wait to be written");
        }
    }
}

fn write_all<F: Whole>(mut writer: Writer<F>, facts: &Facts, lines: &Receiver<Line>) {
    for line in lines {
        let bytes = line.bytes();
        if writer.counts.stopped.load(Ordering::Relaxed) {
            writer.counts.lose("the recording has stopped");
        } else {
            writer.write(&line.session(facts));
        }
        drop(line);
        writer.counts.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A file that can be cut back to what is whole.
trait Whole: io::Write {
    fn cut(&mut self, bytes: u64) -> io::Result<()>;
}

impl Whole for File {
    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }
}

struct Writer<F> {
    file: F,
    path: PathBuf,
    /// Bytes of whole lines.
    good: u64,
    counts: Arc<Counts>,
}

impl<F: Whole> Writer<F> {
    fn write(&mut self, session: &Session) {
        let mut text = Vec::new();
        jsonl::write(&mut text, session).expect("memory takes what is written to it");
        if text.len() > LINE_BYTES_MAX {
            return self.counts.lose("its line would be longer than readers take");
        }
        match self.file.write_all(&text) {
            Ok(()) => {
                self.good += text.len() as u64;
                self.counts.written.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                // Part of the line may be there. Where it cannot be cut off, readers know a torn end.
                let _ = self.file.cut(self.good);
                self.counts.stopped.store(true, Ordering::Relaxed);
                self.counts.lose("it could not be written");
                let (file, written) = (self.path.display(), self.counts.written.load(Ordering::Relaxed));
                tracing::error!(
                    %file, written, %error,
                    "the recording has stopped and the server goes on; make room and start it again to record"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes and no more.
    struct Disk {
        bytes: Vec<u8>,
        room: usize,
    }

    impl io::Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.room - self.bytes.len());
            if n == 0 {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            self.bytes.extend_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Whole for Disk {
        fn cut(&mut self, bytes: u64) -> io::Result<()> {
            self.bytes.truncate(bytes as usize);
            Ok(())
        }
    }

    fn session(text: &str) -> Session {
        let turns = vec![Turn::new(Role::User, text), Turn::output("yes")];
        let request = Request { turn: 1, seed: Some(1), ..Request::default() };
        Session { id: "a".to_owned(), source: SOURCE.to_owned(), turns, requests: vec![request] }
    }

    /// Wherever the room ends, what was whole before stays, nothing follows it, and every line is counted.
    #[test]
    fn a_full_disk_ends_the_recording_behind_a_whole_line() {
        let length = {
            let mut text = Vec::new();
            jsonl::write(&mut text, &session("a")).unwrap();
            text.len()
        };
        for room in 0..=3 * length {
            let counts = Arc::new(Counts::default());
            let file = Disk { bytes: Vec::new(), room };
            let mut writer = Writer { file, path: PathBuf::new(), good: 0, counts: Arc::clone(&counts) };
            for text in ["a", "b", "c"] {
                if !counts.stopped.load(Ordering::Relaxed) {
                    writer.write(&session(text));
                }
            }
            let whole = room / length;
            assert_eq!(writer.file.bytes.len(), whole * length, "{room}");
            assert_eq!(counts.written.load(Ordering::Relaxed), whole as u64, "{room}");
            assert_eq!(counts.stopped.load(Ordering::Relaxed), whole < 3, "{room}");
            assert_eq!(counts.lost.load(Ordering::Relaxed), u64::from(whole < 3), "{room}");
            let read: Vec<Session> =
                jsonl::lines(&writer.file.bytes[..], "disk".to_owned()).collect::<Result<_, _>>().expect("whole lines");
            assert_eq!(read.len(), whole);
        }
    }

    /// A line of a body of `bytes` bytes.
    fn line(bytes: usize) -> Line {
        let default = engine::api::Speculation {
            strategy: engine::api::Strategy::Off,
            mtp_tokens: 0,
            suffix_min: 3,
            suffix_max: 64,
            suffix_tokens: 0,
            policy: engine::api::WindowPolicy::Fixed,
            window_initial: 0,
            window_min: 0,
            window_max: 0,
        };
        let menu = crate::menu::Menu::of(default);
        let spec = crate::serve::SpecConfig { default, menu, mtp: crate::serve::MtpOffer::Absent };
        let nothing = Map::new();
        let params = Params {
            stream: false,
            include_usage: false,
            continuous_usage: false,
            include_speculation: false,
            max_tokens: None,
            n: 1,
            sampling: engine::api::Sampling::greedy(),
            seed: 0,
            stop: engine::api::Stop::default(),
            stop_text: Vec::new(),
            return_tokens: false,
            ping: None,
            speculation: crate::serve::spec::Plan::read(&crate::serve::fields::Fields::body(&nothing), &spec).unwrap(),
            cache: None,
            priority: 0,
            stats: true,
            timings: false,
            progress: false,
            echo_logprobs: false,
        };
        let shared = Arc::new(crate::serve::link::Shared::new());
        shared.bodies_more(bytes);
        let body = Body::new(vec![b' '; bytes], shared);
        let (prompts, lead) = (vec![vec![TokenId(1)]], vec![String::new()]);
        let asked = Asked { id: "a".to_owned(), dialect: Dialect::Chat, body, prompts, lead, params, choices: 1 };
        Line { asked: Arc::new(asked), index: 0, written: Written::default(), end: End::Stop }
    }

    /// Nobody takes lines away here, and nothing waits for that: what finds no room is lost, in lines and in bytes.
    #[test]
    fn lines_without_room_are_lost_at_once() {
        let recorder = |lines: usize| {
            let (near, far) = channel::bounded(lines);
            (Recorder { lines: near, counts: Arc::default() }, far)
        };
        let (few, taken) = recorder(2);
        (0..5).for_each(|_| few.add(line(10)));
        assert_eq!((taken.len(), few.counts.lost.load(Ordering::Relaxed)), (2, 3));
        let held: usize = taken.try_iter().map(|line| line.bytes()).sum();
        assert_eq!(few.counts.queued_bytes.load(Ordering::Relaxed), held, "what was lost is not counted");
        // One that is longer than all room waits alone.
        let (many, taken) = recorder(9);
        [QUEUE_BYTES + 1, 1, 1].into_iter().for_each(|bytes| many.add(line(bytes)));
        assert_eq!((taken.len(), many.counts.lost.load(Ordering::Relaxed)), (1, 2));
        let (many, taken) = recorder(9);
        [QUEUE_BYTES / 2, QUEUE_BYTES / 2 - 100, QUEUE_BYTES].into_iter().for_each(|bytes| many.add(line(bytes)));
        assert_eq!((taken.len(), many.counts.lost.load(Ordering::Relaxed)), (2, 1));
    }

    #[test]
    fn a_line_that_no_reader_takes_is_lost_alone() {
        let counts = Arc::new(Counts::default());
        let file = Disk { bytes: Vec::new(), room: usize::MAX };
        let mut writer = Writer { file, path: PathBuf::new(), good: 0, counts: Arc::clone(&counts) };
        writer.write(&session(&"\u{1}".repeat(LINE_BYTES_MAX / 6)));
        writer.write(&session("a"));
        let (written, lost) = (counts.written.load(Ordering::Relaxed), counts.lost.load(Ordering::Relaxed));
        assert_eq!((written, lost, counts.stopped.load(Ordering::Relaxed)), (1, 1, false));
    }
}
