//! text: the thread that speaks both languages. Bodies become submissions, events become answers. It holds the
//! tokenizer and the template; it sees no socket, and the engine's tick never waits for it. Reading a large body may
//! take seconds, in which streams must go on: `long` does that, a thread that knows nothing else.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, Sender, TrySendError};
use engine::api::{AdmitError, Command, Event, Report};
use engine::ids::{Ticket, TokenId};

use crate::serve::answers::{Choice, Dialect, Failed};
use crate::serve::constrain::{self, Compiler};
use crate::serve::delta::by_token;
use crate::serve::entries::Entries;
use crate::serve::error::ApiError;
use crate::serve::http::Reply;
use crate::serve::job::{Echo, Job, Outcome};
use crate::serve::link::{Bell, Exchange, Held, PageCount, Request, Shared, State, ToFront, ToText};
use crate::serve::metrics::{End, Stage};
use crate::serve::model::TextModel;
use crate::serve::random::Random;
use crate::serve::reader::{Long, Read, Reader, Ready, Work, read_long};
use crate::serve::record::{Asked, Digests, Facts, Line, RecordFile, Recorder, Written};
use crate::serve::remembered::Remembered;
use crate::serve::trail::Trail;
use crate::serve::view::View;
use crate::serve::{Bounds, Parts, Show, info, limits, props};

/// A body that is read without delay for others: milliseconds of work, whatever it holds but a form to compile.
const SMALL_BODY_BYTES: usize = 64 * 1024;

/// The thread's state.
pub(crate) struct Text {
    /// Reads small bodies here.
    pub reader: Reader,
    /// Large ones go to a thread of their own, and come back as work.
    pub long: Sender<Long>,
    pub long_done: Receiver<Work>,
    pub bounds: Bounds,
    pub shared: Arc<Shared>,
    pub inbox: Receiver<ToText>,
    pub outbox: Sender<ToFront>,
    pub bell: Bell,
    pub commands: Sender<Command>,
    pub events: Receiver<Event>,
    pub random: Random,
    /// Of a server that records.
    pub recorder: Option<Recorder>,
    pub state: Jobs,
    /// Declared last: dropped after the channel ends, so that the front finds them closed.
    pub _last_word: WakeOnDrop,
}

/// Wakes the front when this thread ends, however it ends.
pub(crate) struct WakeOnDrop(pub Bell);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// What a front holds of the two threads.
pub(crate) struct Threads {
    /// Ends when the front's channel end has gone, or the engine has.
    pub text: JoinHandle<()>,
    /// Ends after `text` has, with the body that it still reads.
    pub long: JoinHandle<()>,
    /// Ends after `text` has, when all that waited is written; none where nothing is recorded.
    pub recorder: Option<JoinHandle<()>>,
}

/// A front's other ends.
pub(crate) struct Ends {
    pub inbox: Receiver<ToText>,
    pub outbox: Sender<ToFront>,
    /// Rung when something is in `outbox`.
    pub bell: Bell,
}

/// Starts `text` and `long` for a model and its engine, and with `record` (a file, and the digests of the model)
/// the thread that writes it.
///
/// # Errors
/// If the system gives no thread; none is left then.
pub(crate) fn start(
    parts: Parts,
    bounds: Bounds,
    show: Show,
    shared: &Arc<Shared>,
    ends: Ends,
    record: Option<(RecordFile, Digests)>,
) -> io::Result<Threads> {
    let Ends { inbox, outbox, bell } = ends;
    *shared.models.write() = Some(Arc::new(info::entries(&parts.info, &parts.spec, &parts.api.aliases)));
    *shared.view.write() = Some(Arc::new(View::new(&parts, props::answer(&parts, &bounds))));
    *shared.outage.write() = parts.outage;
    shared.metrics.lock().mtp_offer = Some(parts.spec.mtp);
    let caps = parts.model.caps();
    let model: Arc<dyn TextModel> = Arc::from(parts.model);
    let api = Arc::new(parts.api);
    let started = record.map(|(file, digests)| {
        let (model, api) = (Arc::clone(&model), Arc::clone(&api));
        Recorder::start(file, Facts { model, model_id: parts.info.id.clone(), digests, api })
    });
    let (recorder, recorder_thread) = started.transpose()?.unzip();
    shared.metrics.lock().records = recorder.as_ref().map(|near| Arc::clone(&near.counts));
    let compiler = Arc::new(Compiler::new(Arc::clone(&model), bounds.schema_bytes, bounds.compile_time));
    shared.metrics.lock().compiles = Some(Arc::clone(&compiler.times));
    let remembered = Arc::new(Remembered::default());
    let reader = || Reader {
        model: Arc::clone(&model),
        caps,
        compiler: Arc::clone(&compiler),
        remembered: Arc::clone(&remembered),
        info: parts.info.clone(),
        spec: parts.spec,
        slots: parts.slots,
        random: Random::new(),
        api: Arc::clone(&api),
        stop_strings: bounds.stop_strings,
        keep_bodies: recorder.is_some(),
        show,
    };
    let (long, take_long) = channel::bounded(limits::MESSAGES_WAITING);
    // Its answers are large: the next is made when `text` has taken the last.
    let (done, long_done) = channel::bounded(0);
    let long_reader = reader();
    let read = move || read_long(long_reader, &take_long, &done);
    let long_thread = Builder::new().name("long".to_owned()).spawn(read)?;
    let text = Text {
        reader: reader(),
        long,
        long_done,
        bounds,
        shared: Arc::clone(shared),
        inbox,
        outbox,
        bell: bell.clone(),
        commands: parts.commands,
        events: parts.events,
        random: Random::new(),
        recorder,
        state: Jobs::default(),
        _last_word: WakeOnDrop(bell),
    };
    match Builder::new().name("text".to_owned()).spawn(move || text.run()) {
        Ok(text) => {
            shared.advance(State::Serving);
            Ok(Threads { text, long: long_thread, recorder: recorder_thread })
        }
        Err(error) => {
            // The other end of its channel went with the closure.
            let _ = long_thread.join();
            Err(error)
        }
    }
}

/// What runs.
#[derive(Default)]
pub(crate) struct Jobs {
    jobs: HashMap<Exchange, Job>,
    /// Requests whose bodies another thread reads; `false` there when nobody wants the answer any more.
    reading: HashMap<Exchange, Arc<AtomicBool>>,
    tickets: HashMap<Ticket, (Exchange, usize)>,
    /// Cancelled choices whose last event has not come.
    gone: HashMap<Ticket, Gone>,
    next_ticket: u64,
    /// Commands the engine had no room for. Bounded by the jobs: each has a few per choice.
    commands: VecDeque<Command>,
    /// Something was sent to the front since it was last woken.
    dirty: bool,
    draining: bool,
}

/// A choice that nobody waits for.
struct Gone {
    exchange: Exchange,
    choice: usize,
    /// It is the first of its prompt.
    counts_prompt: bool,
    /// Its record so far.
    line: Option<Line>,
}

impl Text {
    /// Runs until the front or the engine has gone.
    pub(crate) fn run(mut self) {
        loop {
            let timeout = self.timeout(Instant::now());
            channel::select! {
                recv(self.inbox) -> message => match message {
                    Ok(message) => self.take(message),
                    // The front has ended, so nobody waits for anything.
                    Err(_) => break,
                },
                recv(self.long_done) -> work => match work {
                    Ok(work) => self.long_read(work),
                    // It panicked: so has this server, which the front sees in the ends of the channels.
                    Err(_) => break,
                },
                recv(self.events) -> event => match event {
                    Ok(event) => {
                        self.event(event);
                        // One wake of the front for everything a tick has brought.
                        while let Ok(event) = self.events.try_recv() {
                            self.event(event);
                        }
                    }
                    Err(_) => {
                        self.engine_ended();
                        break;
                    }
                },
                default(timeout) => {}
            }
            self.send_commands();
            self.keep_streams_alive(Instant::now());
            self.end_waits(Instant::now());
            self.wake();
        }
        let _ = self.commands.try_send(Command::Stop);
        // Nothing more will be heard of these.
        for (_, gone) in std::mem::take(&mut self.state.gone) {
            self.record(gone.line);
        }
    }

    fn record(&self, line: Option<Line>) {
        if let (Some(recorder), Some(line)) = (&self.recorder, line) {
            recorder.add(line);
        }
    }

    fn timeout(&self, now: Instant) -> Duration {
        let mut at = now + Duration::from_secs(3600);
        if !self.state.commands.is_empty() {
            at = now + Duration::from_millis(1);
        }
        for job in self.state.jobs.values() {
            at = at.min(job.next_due(self.bounds.stream_headers_time).unwrap_or(at));
            if job.waits() {
                at = at.min(job.received + self.bounds.queue_time);
            }
        }
        at.saturating_duration_since(now)
    }

    fn send(&mut self, message: ToFront) {
        self.state.dirty = true;
        match self.outbox.try_send(message) {
            Ok(()) => {}
            Err(TrySendError::Full(message)) => {
                // The front never waits for this thread, so it will take what is there.
                self.wake();
                let _ = self.outbox.send(message);
                self.state.dirty = true;
            }
            Err(TrySendError::Disconnected(_)) => {}
        }
    }

    fn wake(&mut self) {
        if std::mem::take(&mut self.state.dirty) {
            self.bell.ring();
        }
    }

    fn command(&mut self, command: Command) {
        self.state.commands.push_back(command);
        self.send_commands();
    }

    fn send_commands(&mut self) {
        while let Some(command) = self.state.commands.pop_front() {
            match self.commands.try_send(command) {
                Ok(()) => {}
                Err(TrySendError::Full(command)) => {
                    self.state.commands.push_front(command);
                    return;
                }
                // Its event channel says so as well; that is where it is handled.
                Err(TrySendError::Disconnected(_)) => self.state.commands.clear(),
            }
        }
    }

    fn take(&mut self, message: ToText) {
        match message {
            ToText::Request(request) => self.request(*request),
            ToText::Gone(exchange) => {
                if let Some(wanted) = self.state.reading.remove(&exchange) {
                    wanted.store(false, Ordering::Relaxed);
                }
                if let Some(mut job) = self.state.jobs.remove(&exchange) {
                    self.drop_choices(&mut job, End::Cancelled);
                }
            }
            ToText::Full(exchange) => self.pause(exchange, true),
            ToText::Room(exchange) => self.pause(exchange, false),
            ToText::Drain => {
                self.state.draining = true;
                self.command(Command::Drain);
            }
            ToText::Abort => {
                let running: Vec<Exchange> = self.state.jobs.keys().copied().collect();
                for exchange in running {
                    self.fail(exchange, &ApiError::draining(), End::Error);
                }
                self.fail_reading(&ApiError::draining());
                self.command(Command::Stop);
            }
        }
    }

    fn pause(&mut self, exchange: Exchange, pause: bool) {
        let Some(job) = self.state.jobs.get_mut(&exchange) else { return };
        job.paused = pause;
        let tickets: Vec<Ticket> = job.live().collect();
        for ticket in tickets {
            self.command(if pause { Command::Pause(ticket) } else { Command::Resume(ticket) });
        }
    }

    fn request(&mut self, request: Request) {
        if request.body.len() <= SMALL_BODY_BYTES && !constrain::may_ask(&request.body) {
            let work = self.reader.read(request);
            return self.begin_work(work);
        }
        let exchange = request.exchange;
        let wanted = Arc::new(AtomicBool::new(true));
        match self.long.try_send(Long { request, wanted: Arc::clone(&wanted) }) {
            Ok(()) => drop(self.state.reading.insert(exchange, wanted)),
            Err(TrySendError::Full(_)) => self.reply(exchange, Reply::from(&ApiError::queue_full(1))),
            Err(TrySendError::Disconnected(_)) => {
                self.reply(exchange, Reply::from(&ApiError::engine("the server failed")))
            }
        }
    }

    /// Goes on with a body that was read elsewhere, unless its client has gone.
    fn long_read(&mut self, work: Work) {
        if self.state.reading.remove(&work.exchange).is_some() {
            self.begin_work(work);
        }
    }

    fn begin_work(&mut self, work: Work) {
        match work.read {
            Read::Answer(reply) => self.reply(work.exchange, reply),
            Read::Ready(ready) => self.start(work.exchange, work.received, work.session, work.id, *ready),
        }
    }

    /// Sends a whole answer. Large ones are counted until they have been read, and refused where too many wait.
    fn reply(&mut self, exchange: Exchange, reply: Reply) {
        if reply.body.len() <= self.bounds.stream_buffer {
            return self.send(ToFront::Reply(exchange, reply, None));
        }
        match Held::new(&self.shared, reply.body.len(), self.bounds.answers_bytes) {
            Some(held) => self.send(ToFront::Reply(exchange, reply, Some(held))),
            None => self.send(ToFront::Reply(exchange, Reply::from(&ApiError::answers_full()), None)),
        }
    }

    fn start(
        &mut self,
        exchange: Exchange,
        received: Instant,
        session: Option<String>,
        request_id: String,
        ready: Ready,
    ) {
        let outage = self.shared.outage.read().why();
        if let Some(why) = outage {
            return self.reply(exchange, Reply::from(&ApiError::stage_unavailable(&why)));
        }
        let n_ctx = self.reader.info.n_ctx;
        if let Some(prompt) = ready.prompts.iter().find(|p| p.len() >= n_ctx) {
            let error = ApiError::context_length(prompt.len(), n_ctx, ready.prompt_param);
            return self.reply(exchange, Reply::from(&error));
        }
        let count = ready.prompts.len() * ready.params.n;
        let most = limits::CHOICES_WAITING.min(self.bounds.waiting);
        if count > most {
            // Asking again would not help: not even an idle server has room for all of them.
            let message = format!(
                "{} prompts with n = {} are {count} choices; at most {most} fit one request",
                ready.prompts.len(),
                ready.params.n
            );
            let error = ApiError::invalid_value("n", message);
            return self.reply(exchange, Reply::from(&error));
        }
        let Ready {
            params,
            dialect,
            writer,
            prompts,
            lead,
            opened,
            shape,
            markers,
            logprobs,
            constraint,
            ignored,
            warnings,
            prompt_param,
            body,
        } = ready;
        let prompt_tokens: Vec<usize> = prompts.iter().map(Vec::len).collect();
        let mut headers = vec![("X-Engine-Prompt-Tokens", prompt_tokens.iter().sum::<usize>().to_string())];
        if let Some(names) = header_list(&ignored) {
            headers.push(("X-Engine-Ignored-Params", names));
        }
        if let Some(codes) = header_list(&warnings) {
            headers.push(("X-Engine-Warnings", codes));
        }
        headers.extend(session.map(|session| ("X-Engine-Session", session)));
        let asked = body.map(|body| {
            let (id, prompts, params) = (writer.id().to_owned(), prompts.clone(), params.clone());
            Arc::new(Asked { id, dialect, body, prompts, lead: opened, params, choices: count })
        });
        let choice = |i: usize| {
            let written = asked.as_ref().map(|_| Written::default());
            let entries = Entries::of(dialect != Dialect::Completion, &lead[i / params.n], markers.as_deref());
            let trail = params.include_speculation.then(|| Trail::new(markers.as_deref()));
            let so_far = Box::new(Report { prompt_tokens: prompts[i / params.n].len() as u64, ..Report::default() });
            Choice { written, trail, so_far, ..Choice::new(i, entries, &shape) }
        };
        let echo = |tokens: &Vec<TokenId>| Echo { tokens: tokens.clone(), logprobs: Vec::new() };
        let echoes = if params.echo_logprobs { prompts.iter().map(echo).collect() } else { Vec::new() };
        let processed = vec![0; prompts.len()];
        let choices = (0..count).map(choice).collect();
        let tickets: Vec<Ticket> = (0..count as u64).map(|i| Ticket(self.state.next_ticket + i)).collect();
        self.state.next_ticket += count as u64;
        for (i, ticket) in tickets.iter().enumerate() {
            self.state.tickets.insert(*ticket, (exchange, i));
        }
        let job = Job {
            exchange,
            received,
            params,
            writer,
            request_id,
            choices,
            tickets,
            admitted: vec![false; count],
            cached: 0,
            prompt_tokens,
            lead,
            markers: markers.clone(),
            echoes,
            processed,
            headers,
            prompt_param,
            open: false,
            begun: false,
            last_sent: Instant::now(),
            paused: false,
            asked,
        };
        let mut metrics = self.shared.metrics.lock();
        metrics.open += count as u64;
        let room = job.params.max_tokens.map_or(n_ctx as u64, u64::from);
        metrics.asked(job.params.n, room, &job.params.speculation, &ignored);
        drop(metrics);
        let commands = job.submissions(prompts, logprobs, constraint.as_deref(), self.bounds.request_time);
        self.state.jobs.insert(exchange, job);
        for command in commands {
            self.command(command);
        }
    }

    fn event(&mut self, event: Event) {
        let ticket = event.ticket();
        if self.state.gone.contains_key(&ticket) {
            return self.event_of_gone(ticket, event);
        }
        let Some(&(exchange, index)) = self.state.tickets.get(&ticket) else { return };
        let Some(job) = self.state.jobs.get_mut(&exchange) else { return };
        let outcome = match event {
            Event::Admitted { cached, .. } => {
                job.admitted[index] = true;
                job.choices[index].so_far.cached_tokens = cached.into();
                job.cached += if index % job.per_prompt() == 0 { u64::from(cached) } else { 0 };
                self.shared.metrics.lock().running += 1;
                // The pause of a job reaches only the choices that are admitted.
                let pause = job.paused.then_some(Command::Pause(ticket));
                self.open_stream(exchange);
                self.state.commands.extend(pause);
                self.begin(exchange)
            }
            Event::Prompt { processed, time_ns, logprobs, .. } => job.prompt(index, processed, time_ns, logprobs),
            Event::Delta { mut delta, .. } => {
                if let Some(report) = delta.report.take() {
                    job.choices[index].so_far = report;
                }
                let apart = self.reader.show.per_token && job.params.stream && delta.tokens.len() > 1;
                let pieces = if apart { by_token(&delta) } else { Vec::new() };
                let deltas = if apart { pieces.as_slice() } else { std::slice::from_ref(&*delta) };
                job.deltas(index, deltas, self.reader.model.as_ref(), &mut self.random)
            }
            Event::Finished { finish, report, .. } => {
                self.state.tickets.remove(&ticket);
                let counts_prompt = index % job.per_prompt() == 0;
                self.shared.service.add(report.total_ns.saturating_sub(report.queue_ns));
                let mut metrics = self.shared.metrics.lock();
                metrics.open -= 1;
                metrics.running -= u64::from(job.admitted[index]);
                metrics.used(&report, counts_prompt);
                metrics.finished(finish, &report, Instant::now());
                drop(metrics);
                // A choice of no tokens, of whose prompt nothing is left to compute, ends without having been admitted.
                if !job.admitted[index] && counts_prompt {
                    job.cached += report.cached_tokens;
                }
                self.open_stream(exchange);
                if let Outcome::Send(first) = self.begin(exchange)
                    && !first.is_empty()
                {
                    self.send(ToFront::Data(exchange, first));
                }
                let Some(job) = self.state.jobs.get_mut(&exchange) else { return };
                let outcome = job.finished(index, finish, report, self.reader.model.as_ref(), &mut self.random);
                let written = &job.choices[index].assembler;
                let (end, anomalies) = (End::of(finish, written.calls), written.anomalies());
                let line = job.line(index, end);
                let mut metrics = self.shared.metrics.lock();
                metrics.ended(end);
                metrics.wrote(anomalies);
                drop(metrics);
                self.record(line);
                outcome
            }
            Event::Pages { held, free, .. } => {
                return self.send(ToFront::Pages(exchange, PageCount { choice: index as u32, held, free }));
            }
            Event::Cancelled { .. } => unreachable!("what this thread cancelled is in `gone`"),
            Event::Refused { error, .. } => {
                self.state.tickets.remove(&ticket);
                let full = matches!(error, AdmitError::QueueFull { .. });
                let (admitted, mut error) = (job.admitted[index], job.refused(&error));
                self.uncount(admitted, End::Error);
                if full {
                    error.retry_after = Some(self.retry_after());
                }
                Outcome::Fail(error)
            }
        };
        match outcome {
            Outcome::Send(bytes) if bytes.is_empty() => {}
            Outcome::Send(bytes) => {
                if let Some(job) = self.state.jobs.get_mut(&exchange) {
                    job.last_sent = Instant::now();
                }
                self.send(ToFront::Data(exchange, bytes));
            }
            Outcome::Reply(reply) => {
                self.state.jobs.remove(&exchange);
                self.reply(exchange, reply);
            }
            Outcome::Close(bytes) => {
                self.state.jobs.remove(&exchange);
                self.send(ToFront::Data(exchange, bytes));
                self.send(ToFront::Close(exchange));
            }
            Outcome::Fail(error) => self.fail(exchange, &error, End::Error),
        }
    }

    /// A cancelled choice may still have events on the way. Only its record takes them; the last says what it has used.
    fn event_of_gone(&mut self, ticket: Ticket, event: Event) {
        match event {
            Event::Admitted { .. } | Event::Prompt { .. } => {}
            Event::Delta { delta, .. } => {
                if let Some(line) = self.state.gone.get_mut(&ticket).and_then(|gone| gone.line.as_mut()) {
                    line.written.add(&delta.said.text, &delta.tokens);
                }
            }
            Event::Pages { held, free, .. } => {
                let Some(gone) = self.state.gone.get(&ticket) else { return };
                let (exchange, choice) = (gone.exchange, gone.choice as u32);
                self.send(ToFront::Pages(exchange, PageCount { choice, held, free }));
            }
            Event::Refused { .. } => {
                self.state.gone.remove(&ticket);
            }
            Event::Finished { report, .. } => self.end_of_gone(ticket, &report, "", &[]),
            Event::Cancelled { tokens, said, report, .. } => self.end_of_gone(ticket, &report, &said.text, &tokens),
        }
    }

    /// The last event of a cancelled choice, with what no other has said.
    fn end_of_gone(&mut self, ticket: Ticket, report: &Report, text: &str, tokens: &[TokenId]) {
        let Some(mut gone) = self.state.gone.remove(&ticket) else { return };
        self.shared.metrics.lock().used(report, gone.counts_prompt);
        if let Some(line) = &mut gone.line {
            line.written.add(text, tokens);
        }
        self.record(gone.line);
    }

    /// When who finds the queue full should ask again.
    fn retry_after(&self) -> u8 {
        let metrics = self.shared.metrics.lock();
        self.shared.service.retry_after(metrics.open.saturating_sub(metrics.running), self.reader.slots)
    }

    fn begin(&mut self, exchange: Exchange) -> Outcome {
        Outcome::Send(self.state.jobs.get_mut(&exchange).map(Job::begin).unwrap_or_default())
    }

    fn open_stream(&mut self, exchange: Exchange) {
        let Some(job) = self.state.jobs.get_mut(&exchange) else { return };
        if job.open || !job.params.stream {
            return;
        }
        job.open = true;
        job.last_sent = Instant::now();
        let mut headers = vec![
            ("Content-Type", "text/event-stream; charset=utf-8".to_owned()),
            ("Cache-Control", "no-cache".to_owned()),
            ("X-Accel-Buffering", "no".to_owned()),
        ];
        headers.extend(job.headers.iter().cloned());
        if job.admitted.iter().step_by(job.per_prompt()).all(|admitted| *admitted) {
            headers.push(("X-Engine-Cached-Tokens", job.cached.to_string()));
        }
        self.send(ToFront::Open(exchange, headers));
    }

    /// Ends a request with an error: a status where none was sent yet, else an error event and a broken transfer.
    fn fail(&mut self, exchange: Exchange, error: &ApiError, end: End) {
        let Some(mut job) = self.state.jobs.remove(&exchange) else { return };
        self.drop_choices(&mut job, end);
        if job.open {
            let (bytes, failed) = job.failure(error);
            match failed {
                Failed::Broken => self.send(ToFront::Break(exchange, error.status, bytes)),
                Failed::Whole => {
                    self.send(ToFront::Data(exchange, bytes));
                    self.send(ToFront::Close(exchange));
                }
            }
        } else {
            self.reply(exchange, Reply::from(error));
        }
    }

    /// Fails requests whose bodies are still being read.
    fn fail_reading(&mut self, error: &ApiError) {
        for (exchange, wanted) in std::mem::take(&mut self.state.reading) {
            wanted.store(false, Ordering::Relaxed);
            self.reply(exchange, Reply::from(error));
        }
    }

    /// Cancels what still runs of a job that is no longer answered.
    fn drop_choices(&mut self, job: &mut Job, end: End) {
        for (index, ticket) in job.tickets.clone().into_iter().enumerate() {
            // A ticket that is gone from the table has ended, and was counted when it did.
            if self.state.tickets.remove(&ticket).is_some() {
                let (counts_prompt, line) = (index % job.per_prompt() == 0, job.line(index, end));
                let gone = Gone { exchange: job.exchange, choice: index, counts_prompt, line };
                self.state.gone.insert(ticket, gone);
                self.uncount(job.admitted[index], end);
                if end == End::Cancelled {
                    self.shared.metrics.lock().cancelled(job.stage(index));
                }
                self.command(Command::Cancel(ticket));
            }
        }
    }

    /// A choice ended without a report.
    fn uncount(&self, admitted: bool, end: End) {
        let mut metrics = self.shared.metrics.lock();
        metrics.open -= 1;
        metrics.running -= u64::from(admitted);
        metrics.ended(end);
    }

    fn engine_ended(&mut self) {
        let drained = self.state.draining;
        let error = if drained { ApiError::draining() } else { ApiError::engine("the engine has ended") };
        let running: Vec<Exchange> = self.state.jobs.keys().copied().collect();
        if !drained {
            tracing::error!("the engine has ended by itself");
            self.shared.advance(State::Dead);
        }
        for exchange in running {
            self.fail(exchange, &error, End::Error);
        }
        self.fail_reading(&error);
        // Requests that arrived in the meantime get an answer as well.
        while let Ok(message) = self.inbox.try_recv() {
            if let ToText::Request(request) = message {
                self.reply(request.exchange, Reply::from(&error));
            }
        }
        if !drained {
            self.send(ToFront::Dead);
        }
        self.wake();
    }

    /// Fails requests of which a choice has waited too long for a slot.
    fn end_waits(&mut self, now: Instant) {
        let late = |job: &&Job| job.waits() && job.received + self.bounds.queue_time <= now;
        let late: Vec<Exchange> = self.state.jobs.values().filter(late).map(|j| j.exchange).collect();
        for exchange in late {
            self.fail(exchange, &ApiError::queue_timeout(self.bounds.queue_time), End::Timeout);
        }
    }

    /// Opens streams that wait long, and breaks silence with comments.
    fn keep_streams_alive(&mut self, now: Instant) {
        let headers_time = self.bounds.stream_headers_time;
        let due = |job: &&Job| job.next_due(headers_time).is_some_and(|at| at <= now);
        let due: Vec<Exchange> = self.state.jobs.values().filter(due).map(|j| j.exchange).collect();
        for exchange in due {
            let Some(job) = self.state.jobs.get_mut(&exchange) else { continue };
            if job.open {
                job.last_sent = now;
                let ping = job.ping();
                self.send(ToFront::Data(exchange, ping));
            } else {
                self.open_stream(exchange);
            }
        }
    }
}

impl Job {
    /// Whether a choice waits for a slot.
    fn waits(&self) -> bool {
        self.choices.iter().zip(&self.admitted).any(|(choice, admitted)| !admitted && choice.end.is_none())
    }

    /// What a choice that has not ended is at.
    fn stage(&self, index: usize) -> Stage {
        match (self.admitted[index], self.choices[index].completion_tokens) {
            (false, _) => Stage::Queued,
            (true, _) if self.paused => Stage::Stalled,
            (true, 0) => Stage::Prefill,
            (true, _) => Stage::Decode,
        }
    }

    /// When the stream needs something although no event has come; its headers go out after `headers_time`.
    fn next_due(&self, headers_time: Duration) -> Option<Instant> {
        match (self.params.stream, self.open) {
            (false, _) => None,
            (true, false) => Some(self.received + headers_time),
            // A reader that takes nothing needs no comments either.
            (true, true) if self.paused => None,
            (true, true) => self.params.ping.map(|ping| self.last_sent + ping),
        }
    }
}

/// Names for a header: visible ASCII, at most 1 KiB.
fn header_list(names: &[String]) -> Option<String> {
    let mut out = String::new();
    for name in names {
        let clean: String = name.chars().take(64).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect();
        if out.len() + clean.len() + 2 > 1024 {
            break;
        }
        if !out.is_empty() {
            out.push_str(", ");
        }
        out.push_str(&clean);
    }
    (!out.is_empty()).then_some(out)
}
