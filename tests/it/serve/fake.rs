//! A scripted engine and a toy tokenizer: one token per byte, a template that writes `role: content` lines.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender};
use engine::api::{
    AdmitError, Command, Event, Finish, Origin, Report, Speculation, Strategy, Submission, TokenLogprob,
};
use engine::channels::Said;
use engine::clock::Monotonic;
use engine::delta::Committed;
use engine::gauges::Gauges;
use engine::ids::{RequestId, Slot, Ticket, TokenId};
use engine::limits::Limits;
use engine_bin::menu::{BUILT_IN, Menu};
use engine_bin::serve::{
    Api, Bounds, Caps, Config, Conversation, Digests, Exit, ModelInfo, MtpOffer, Outage, Parts, RecordFile,
    RenderError, Rendered, SamplingDefaults, Server, SpecConfig, TemplateFacts, TextModel,
};
use engine_io::digest::Sha256;
use serde_json::Value;
use std::sync::{Condvar, Mutex};

pub const END: TokenId = TokenId(256);
/// A control token that ends nothing.
pub const HIDDEN: TokenId = TokenId(257);
/// A token of 64 KiB.
pub const LONG: TokenId = TokenId(258);
const VOCAB: usize = 259;
pub const N_CTX: usize = 256;

/// Bytes as tokens. A text that begins with [`SLOW`] or [`SLOWER`] is tokenized when [`let_slow_texts_go`] says so.
pub struct Toy;

pub const SLOW: &str = "a slow text";
/// Of a test of its own: no other lets it go.
pub const SLOWER: &str = "a slower text";
/// The beginnings that go.
static SLOW_TEXTS_GO: (Mutex<Vec<&str>>, Condvar) = (Mutex::new(Vec::new()), Condvar::new());

/// For all of this beginning that come, and for those that wait.
pub fn let_slow_texts_go(beginning: &'static str) {
    SLOW_TEXTS_GO.0.lock().unwrap().push(beginning);
    SLOW_TEXTS_GO.1.notify_all();
}

/// A text whose channels nobody has asked for.
fn said(text: String) -> Said {
    Said { text, runs: Vec::new() }
}

pub fn ids(text: &str) -> Vec<TokenId> {
    text.bytes().map(|b| TokenId(b.into())).collect()
}

impl TextModel for Toy {
    fn template(&self) -> Option<(&str, &TemplateFacts)> {
        None
    }

    fn vocab(&self) -> usize {
        VOCAB
    }

    fn encode(&self, text: &str, _add_special: bool, _parse_special: bool) -> Vec<TokenId> {
        assert!(text.len() < 4 << 20, "a text that cannot fit is refused before it is tokenized");
        if let Some(slow) = [SLOW, SLOWER].into_iter().find(|slow| text.starts_with(slow)) {
            let go = SLOW_TEXTS_GO.0.lock().unwrap();
            let deadline = super::client::DEADLINE;
            drop(SLOW_TEXTS_GO.1.wait_timeout_while(go, deadline, |go| !go.contains(&slow)).unwrap());
        }
        ids(text)
    }

    fn ids_min(&self, bytes: usize) -> usize {
        // Less than it could say, so that prompts between the two bounds are counted exactly.
        bytes / 2
    }

    fn piece(&self, token: TokenId) -> Vec<u8> {
        match token {
            END => b"<end>".to_vec(),
            HIDDEN => b"<hidden>".to_vec(),
            LONG => vec![b'x'; 1 << 16],
            TokenId(byte) => vec![byte as u8],
        }
    }

    fn is_control(&self, token: TokenId) -> bool {
        token == END || token == HIDDEN
    }

    fn is_end(&self, token: TokenId) -> bool {
        token == END
    }

    fn caps(&self) -> Caps {
        Caps { chat: true, ..Caps::default() }
    }

    fn render(&self, conversation: &Conversation<'_>, n_ctx: usize) -> Result<Rendered, RenderError> {
        let mut text = String::new();
        for message in conversation.messages.as_array().unwrap() {
            let content = message["content"].as_str().unwrap();
            if content == "raise" {
                return Err(RenderError::Template("no such conversation".to_owned()));
            }
            text.push_str(&format!("{}: {content}\n", message["role"].as_str().unwrap()));
        }
        if conversation.add_generation_prompt {
            text.push_str("assistant: ");
        }
        if self.ids_min(text.len()) >= n_ctx {
            return Err(RenderError::TooLong(self.ids_min(text.len())));
        }
        let open_tag = conversation.kwargs.get("enable_thinking").filter(|v| **v == true).map(|_| "<think>".to_owned());
        Ok(Rendered { tokens: ids(&text), text, special_spans: Vec::new(), open_tag })
    }
}

/// What the engine does with a submission.
#[derive(Clone, Debug)]
pub enum Script {
    /// These texts, one event each, then the end.
    Say(Vec<&'static str>, Finish),
    /// A hidden token in front of each of these texts.
    SayHidden(Vec<&'static str>),
    /// A text of this many bytes in one event.
    SayLong(usize),
    /// `x` for ever, as fast as the reader allows.
    Endless,
    /// Waits in the queue until cancelled.
    Queue,
    /// Is admitted and then in prefill until cancelled.
    Prefill,
    /// Refused.
    Refuse(AdmitError),
    /// The thread ends.
    Die,
}

type Chooser = Box<dyn Fn(&Submission) -> Script + Send>;

struct Running {
    paused: bool,
    prompt: u64,
    said: u64,
}

/// What an endless choice has chosen and not sent when it is cancelled.
pub fn unsent() -> String {
    "y".repeat(2048)
}

fn cancelled(ticket: Ticket, prompt_tokens: u64, completion_tokens: u64) -> Event {
    let text = if completion_tokens > 0 { unsent() } else { String::new() };
    let completion_tokens = completion_tokens + text.len() as u64;
    let first = completion_tokens.min(1);
    let bonus = completion_tokens - first;
    let report = Report { prompt_tokens, completion_tokens, first, bonus, ..Report::default() };
    Event::Cancelled { ticket, tokens: ids(&text), said: said(text), report: Box::new(report) }
}

/// The engine's thread.
fn engine(commands: &Receiver<Command>, events: &Sender<Event>, log: &Mutex<Vec<Command>>, choose: &Chooser) {
    let mut endless: HashMap<Ticket, Running> = HashMap::new();
    let mut held: Vec<Ticket> = Vec::new();
    let mut draining = false;
    loop {
        if draining && endless.is_empty() && held.is_empty() {
            return;
        }
        let wait =
            if endless.values().any(|r| !r.paused) { Duration::from_micros(200) } else { Duration::from_secs(3600) };
        let command = match commands.recv_timeout(wait) {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if let Some(command) = &command {
            log.lock().unwrap().push(command.clone());
        }
        match command {
            Some(Command::Submit(submission)) => {
                let ticket = submission.ticket;
                let request = RequestId { slot: Slot(0), generation: NonZeroU32::MIN };
                match choose(&submission) {
                    Script::Die => return,
                    Script::Refuse(error) => events.send(Event::Refused { ticket, error }).unwrap(),
                    Script::Queue => held.push(ticket),
                    Script::Prefill => {
                        events.send(Event::Admitted { ticket, request, cached: 0 }).unwrap();
                        held.push(ticket);
                    }
                    Script::Endless => {
                        events.send(Event::Admitted { ticket, request, cached: 0 }).unwrap();
                        let prompt = submission.prompt.len() as u64;
                        endless.insert(ticket, Running { paused: false, prompt, said: 0 });
                    }
                    Script::Say(texts, finish) => {
                        events.send(Event::Admitted { ticket, request, cached: 0 }).unwrap();
                        let texts: Vec<(String, Vec<TokenId>)> =
                            texts.iter().map(|text| ((*text).to_owned(), ids(text))).collect();
                        say(&submission, texts, finish, events);
                    }
                    Script::SayHidden(texts) => {
                        events.send(Event::Admitted { ticket, request, cached: 0 }).unwrap();
                        let hidden = |text: &&str| [vec![HIDDEN], ids(text)].concat();
                        let texts = texts.iter().map(|text| ((*text).to_owned(), hidden(text))).collect();
                        say(&submission, texts, Finish::EndToken(END), events);
                    }
                    Script::SayLong(bytes) => {
                        events.send(Event::Admitted { ticket, request, cached: 0 }).unwrap();
                        say(&submission, vec![("x".repeat(bytes), Vec::new())], Finish::EndToken(END), events);
                    }
                }
            }
            Some(Command::Cancel(ticket)) => {
                let was = endless.remove(&ticket).map(|r| (r.prompt, r.said));
                let held_before = held.len();
                held.retain(|t| *t != ticket);
                if let Some((prompt, said)) = was.or((held.len() < held_before).then_some((0, 0))) {
                    // The server may be gone by now.
                    let _ = events.send(cancelled(ticket, prompt, said));
                }
            }
            Some(Command::Pause(ticket)) => {
                endless.entry(ticket).and_modify(|r| r.paused = true);
            }
            Some(Command::Resume(ticket)) => {
                endless.entry(ticket).and_modify(|r| r.paused = false);
            }
            Some(Command::Drain) => draining = true,
            Some(Command::Stop) => return,
            Some(Command::ReportPages) | None => {}
        }
        for (ticket, running) in endless.iter_mut().filter(|(_, r)| !r.paused) {
            let text = "x".repeat(2048);
            running.said += text.len() as u64;
            events.send(delta(*ticket, ids(&text), said(text), Vec::new())).unwrap();
        }
    }
}

fn delta(ticket: Ticket, tokens: Vec<TokenId>, said: Said, logprobs: Vec<TokenLogprob>) -> Event {
    let mut bytes = 0;
    let cut = |token: &TokenId| {
        bytes += usize::from(token.0 < 256);
        // As far as characters are whole.
        (0..=bytes.min(said.text.len())).rev().find(|at| said.text.is_char_boundary(*at)).unwrap_or(0) as u32
    };
    let cuts = tokens.iter().map(cut).collect();
    let origins = vec![Origin::Target; tokens.len()];
    let delta = Committed { origins, tokens, said, cuts, logprobs, ..Committed::default() };
    Event::Delta { ticket, delta: delta.into() }
}

fn say(submission: &Submission, texts: Vec<(String, Vec<TokenId>)>, finish: Finish, events: &Sender<Event>) {
    let ticket = submission.ticket;
    let mut completion = 0;
    let count = texts.len();
    for (i, (text, mut tokens)) in texts.into_iter().enumerate() {
        if i + 1 == count
            && let Finish::EndToken(end) = finish
        {
            tokens.push(end);
        }
        completion += tokens.len() as u64;
        let logprob = |t: &TokenId| TokenLogprob { token: *t, logprob: -0.5, top: vec![(*t, -0.5)] };
        let logprobs = if submission.logprobs.is_some() { tokens.iter().map(logprob).collect() } else { Vec::new() };
        events.send(delta(ticket, tokens, said(text), logprobs)).unwrap();
    }
    let report = Report {
        prompt_tokens: submission.prompt.len() as u64,
        completion_tokens: completion,
        first: 1,
        bonus: completion.saturating_sub(1),
        steps: completion.saturating_sub(1),
        plain: completion.saturating_sub(1),
        width_hist: vec![completion.saturating_sub(1)],
        ..Report::default()
    };
    events.send(Event::Finished { ticket, finish, report: Box::new(report) }).unwrap();
}

/// A server with a scripted engine behind it.
pub struct Fake {
    pub server: Option<Server>,
    log: Arc<Mutex<Vec<Command>>>,
    engine: Option<JoinHandle<()>>,
}

pub fn config() -> Config {
    Config::local(0, N_CTX)
}

impl Fake {
    pub fn start(choose: impl Fn(&Submission) -> Script + Send + 'static) -> Self {
        Self::with(config(), choose)
    }

    pub fn bounded(bounds: Bounds, choose: impl Fn(&Submission) -> Script + Send + 'static) -> Self {
        Self::with(Config { bounds, ..config() }, choose)
    }

    pub fn with(config: Config, choose: impl Fn(&Submission) -> Script + Send + 'static) -> Self {
        Self::of(Server::start(config).unwrap(), choose)
    }

    /// One that records in `folder`.
    pub fn recording(folder: &Path, choose: impl Fn(&Submission) -> Script + Send + 'static) -> Self {
        let mut server = Server::start(config()).unwrap();
        let digests = Digests { tensors: Sha256::of(b"toy"), tokenizer: Some(Sha256::of(b"bytes")) };
        server.record(RecordFile::create(folder).unwrap(), digests);
        Self::of(server, choose)
    }

    fn of(mut server: Server, choose: impl Fn(&Submission) -> Script + Send + 'static) -> Self {
        let log = Arc::default();
        let (commands, take_commands) = channel::bounded(256);
        let (events, take_events) = channel::bounded(1024);
        let engine_log = Arc::clone(&log);
        let choose: Chooser = Box::new(choose);
        let engine = thread::spawn(move || engine(&take_commands, &events, &engine_log, &choose));
        server.serve(parts(commands, take_events)).unwrap();
        Self { server: Some(server), log, engine: Some(engine) }
    }

    pub fn address(&self) -> std::net::SocketAddr {
        self.server.as_ref().unwrap().address()
    }

    /// Waits until the engine has received a command that fits.
    pub fn wait_for(&self, what: &str, fits: impl Fn(&Command) -> bool) {
        let end = Instant::now() + super::client::DEADLINE;
        while !self.log.lock().unwrap().iter().any(&fits) {
            assert!(Instant::now() < end, "{what}: not within the deadline");
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn count(&self, fits: impl Fn(&Command) -> bool) -> usize {
        self.log.lock().unwrap().iter().filter(|c| fits(c)).count()
    }

    /// The submissions so far.
    pub fn submissions(&self) -> Vec<Submission> {
        let log = self.log.lock().unwrap();
        log.iter().filter_map(|c| if let Command::Submit(s) = c { Some((**s).clone()) } else { None }).collect()
    }

    /// Shuts down and returns how it ended.
    pub fn end(mut self) -> Exit {
        self.finish()
    }

    fn finish(&mut self) -> Exit {
        let server = self.server.take().expect("ended once");
        server.handle().shutdown();
        let exit = server.join();
        self.engine.take().unwrap().join().unwrap();
        exit
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if self.server.is_some() && !thread::panicking() {
            self.finish();
        }
    }
}

pub const SPECULATION: Speculation = Speculation { strategy: Strategy::NgramSuffix, suffix_tokens: 32, ..BUILT_IN };

pub fn parts(commands: Sender<Command>, events: Receiver<Event>) -> Parts {
    let info = ModelInfo {
        mtp_checked: false,
        id: "org/toy".to_owned(),
        path: "toy.gguf".to_owned(),
        created: 1_790_000_000,
        n_ctx: N_CTX,
        n_ctx_train: N_CTX,
        n_vocab: VOCAB,
        n_embd: 1,
        n_params: 1,
        size: 1,
        ftype: "F32".to_owned(),
        arch: "toy".to_owned(),
        trunk_layers: 1,
        nextn: 0,
        sampling: SamplingDefaults::default(),
    };
    let spec = SpecConfig { default: SPECULATION, menu: Menu::of(SPECULATION), mtp: MtpOffer::Absent };
    let gauges = Arc::new(Gauges::new(&Limits::new(4, N_CTX)));
    let (clock, outage) = (Monotonic::default(), Outage::default());
    let (model, api) = (Box::new(Toy), Api::default());
    Parts { model, info, spec, slots: 4, commands, events, gauges, clock, outage, api }
}

/// The simplest body.
pub fn chat(content: &str) -> Value {
    serde_json::json!({"messages": [{"role": "user", "content": content}]})
}

/// `Hello, world` and an end token.
pub fn hello(_: &Submission) -> Script {
    Script::Say(vec!["Hel", "lo, ", "world"], Finish::EndToken(END))
}
