//! The engine's border: what a front end sends in and gets out. Plain values over bounded channels.
//!
//! ```text
//! front end ──Command──► [inbox] ── tick ──► [events] ──Event──► front end
//! ```

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::channels::{Markers, Said};
use crate::constraint::Constraint;
use crate::delta::Delta;
use crate::ids::{RequestId, Ticket, TokenId};
use crate::step::{Fault, LogitEdit};

/// Which proposers draft for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Strategy {
    /// Plain decoding.
    Off,
    /// The model's own MTP block.
    Mtp,
    /// The request's own suffix index.
    NgramSuffix,
    /// MTP prefix with a suffix tail, one window.
    MtpSuffix,
}

impl Strategy {
    /// All strategies in their documented order.
    pub const ALL: [Self; 4] = [Self::Off, Self::Mtp, Self::NgramSuffix, Self::MtpSuffix];

    /// The name used by flags, requests, packages and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Mtp => "mtp",
            Self::NgramSuffix => "ngram-suffix",
            Self::MtpSuffix => "mtp-suffix",
        }
    }

    /// Inverse of [`Self::name`].
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    /// Whether the MTP block drafts.
    pub fn uses_mtp(self) -> bool {
        matches!(self, Self::Mtp | Self::MtpSuffix)
    }

    /// Whether the suffix index drafts.
    pub fn uses_suffix(self) -> bool {
        matches!(self, Self::NgramSuffix | Self::MtpSuffix)
    }

    /// What remains of it where no MTP block drafts.
    pub fn without_mtp(self) -> Self {
        if self.uses_suffix() { Self::NgramSuffix } else { Self::Off }
    }
}

/// Who decides a window's width.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum WindowPolicy {
    /// `window_initial` drafts every step, as far as proposers and room allow.
    Fixed,
    /// Expected gain from measured cost and survival, within `window_min..=window_max`; may turn speculation down.
    Adaptive,
}

/// Effective speculation settings of a request, after clamping (the front end reports the clamps).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Speculation {
    /// Which proposers draft.
    pub strategy: Strategy,
    /// MTP chain length, `0..=MTP_TOKENS_MAX`.
    pub mtp_tokens: u8,
    /// Shortest suffix match that proposes.
    pub suffix_min: u8,
    /// Longest suffix match that is looked for.
    pub suffix_max: u8,
    /// Longest suffix tail.
    pub suffix_tokens: u8,
    /// Who decides the width.
    pub policy: WindowPolicy,
    /// Width of `Fixed`, first width of `Adaptive`.
    pub window_initial: u8,
    /// Least width of `Adaptive` while speculation is on.
    pub window_min: u8,
    /// Largest width.
    pub window_max: u8,
}

/// How tokens are chosen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 = argmax.
    pub temperature: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 1 = off. Source: Meister et al., Locally Typical Sampling (arXiv:2202.00666).
    pub typical_p: f32,
    /// 1 = off.
    pub top_p: f32,
    /// 0 = off.
    pub min_p: f32,
    /// Multiplicative penalty over the last `repeat_last_n` tokens of prompt and completion; 1 = off.
    pub repeat_penalty: f32,
    /// Tokens the repetition penalty looks back on; `u32::MAX` = the whole context.
    pub repeat_last_n: u32,
    /// Added once for every token present in the completion, negated.
    pub presence_penalty: f32,
    /// Added once per occurrence in the completion, negated.
    pub frequency_penalty: f32,
    /// Additive bias; `repeat` fields are 1, a ban is `add = -inf`.
    pub logit_bias: Vec<LogitEdit>,
    /// Key of the counter generator.
    pub seed: u64,
    /// Choice index, part of the key.
    pub choice: u32,
}

impl Sampling {
    /// Plain argmax without edits.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            choice: 0,
        }
    }
}

/// When a choice ends, besides the context's own end.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stop {
    /// Stop strings as bytes; the text is cut exactly before the match.
    pub strings: Vec<Vec<u8>>,
    /// Token ids that end the choice; the token is committed and not shown.
    pub tokens: Vec<TokenId>,
    /// The model's own end tokens are banned instead of obeyed.
    pub ignore_eos: bool,
    /// End tokens and stop strings are banned before this many completion tokens.
    pub min_tokens: u32,
    /// The matched stop string stays in the text.
    pub include: bool,
}

/// One choice to generate. Everything that can be refused by its form was refused by the front end.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The sender's name for it; events carry it back.
    pub ticket: Ticket,
    /// Prompt ids, at least one.
    pub prompt: Vec<TokenId>,
    /// Most completion tokens, end token included.
    pub max_tokens: u32,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// When it ends.
    pub stop: Stop,
    /// How it speculates.
    pub speculation: Speculation,
    /// Log-probabilities wanted: `None`, or the number of alternatives.
    pub logprobs: Option<u32>,
    /// Show end and control tokens in the text.
    pub show_special: bool,
    /// The borders of channels, where they are to be told apart; else all text is content.
    pub markers: Option<Arc<Markers>>,
    /// Namespace of the prefix cache that it reads and writes; `None`: it does neither.
    pub cache: Option<u64>,
    /// A choice before it with the same prompt and rules but for the choice index: where that has just computed the
    /// prompt, this one goes on as a copy of it; it waits for that as long as it is under way.
    pub sibling: Option<Ticket>,
    /// What its tokens may be, beyond `sampling`. A choice that goes on as a copy goes on with a copy of the other's.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Place in the queue: lower goes first, equals in the order of arrival. What runs already is not preempted for it.
    pub priority: i8,
    /// Nanoseconds from its arrival after which it ends with what it has.
    pub time_ns: Option<u64>,
    /// Say [`Event::Prompt`] while the prompt is computed.
    pub progress: bool,
    /// Log-probabilities of the prompt's tokens, with as many alternatives as `logprobs` says. All of it is computed
    /// then, whatever the prefix cache has. They are said once: a choice that goes on as a copy has none.
    pub prompt_logprobs: bool,
    /// Deltas carry what was counted so far.
    pub reports: bool,
}

impl Submission {
    /// A choice that takes the best token every time, ends as the model says, and uses the prefix cache of all.
    pub fn greedy(ticket: Ticket, prompt: Vec<TokenId>, max_tokens: u32, speculation: Speculation) -> Self {
        Self {
            ticket,
            prompt,
            max_tokens,
            sampling: Sampling::greedy(),
            stop: Stop::default(),
            speculation,
            logprobs: None,
            show_special: false,
            markers: None,
            cache: Some(0),
            sibling: None,
            constraint: None,
            priority: 0,
            time_ns: None,
            progress: false,
            prompt_logprobs: false,
            reports: false,
        }
    }
}

/// Front end to engine.
#[derive(Clone, Debug)]
pub enum Command {
    /// Queue a choice.
    Submit(Box<Submission>),
    /// Forget a choice wherever it is. All that is still said about it is [`Event::Cancelled`], unless its last event is
    /// on the way already.
    Cancel(Ticket),
    /// The front end has no room for more of this choice: the row waits (no draft, no verify) and keeps its pages.
    Pause(Ticket),
    /// The front end has room again for this choice's events.
    Resume(Ticket),
    /// Say [`Event::Pages`] from now on.
    ReportPages,
    /// Finish what runs, refuse what waits, then end.
    Drain,
    /// End now.
    Stop,
}

/// Why a choice ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Finish {
    /// An end token of the model or of the request.
    EndToken(TokenId),
    /// The stop string with this index.
    StopString(u32),
    /// `max_tokens` reached.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The time that it was given is over.
    TimedOut,
    /// No token could be chosen at some position.
    Fault(Fault),
}

/// Why a submission was not admitted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdmitError {
    /// More prompt than the context can hold.
    #[error("the prompt has {prompt} tokens; at most {context} - 1 fit the context")]
    PromptTooLong {
        /// Prompt tokens.
        prompt: usize,
        /// Context tokens.
        context: usize,
    },
    /// No prompt at all.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A prompt id outside the vocabulary.
    #[error("prompt token {token} is outside the vocabulary of {vocab}")]
    BadToken {
        /// The id.
        token: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// The waiting list is full.
    #[error("{waiting} requests wait already")]
    QueueFull {
        /// Waiting submissions.
        waiting: usize,
    },
    /// The strategy needs something the model lacks.
    #[error("strategy {strategy} is not available: {reason}")]
    StrategyUnavailable {
        /// Its name.
        strategy: &'static str,
        /// What is missing.
        reason: &'static str,
    },
    /// The engine is ending.
    #[error("the engine is draining")]
    Draining,
}

/// Who proposed a committed token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Origin {
    /// The target's own choice.
    Target,
    /// The MTP block.
    Mtp,
    /// The suffix index.
    Suffix,
    /// A rule that left nothing else.
    Forced,
}

impl Origin {
    /// The name in answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Mtp => "mtp",
            Self::Suffix => "suffix",
            Self::Forced => "forced",
        }
    }
}

/// Log-probabilities of one committed token.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Under the raw logits.
    pub logprob: f32,
    /// Alternatives, best first.
    pub top: Vec<(TokenId, f32)>,
}

/// Engine to front end. Events of one ticket are in order; exactly one of `Finished`, `Cancelled` and `Refused` is the
/// last.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Holds a slot now; prefill starts.
    Admitted {
        /// The sender's name.
        ticket: Ticket,
        /// The engine's name.
        request: RequestId,
        /// Tokens of its prompt that came from the prefix cache.
        cached: u32,
    },
    /// More of the prompt is computed, where that is wanted: said once a pass, or of several at once while the reader of
    /// events is slow.
    Prompt {
        /// The sender's name.
        ticket: Ticket,
        /// Tokens of the prompt that are computed, or came from the prefix cache.
        processed: u32,
        /// Since admission.
        time_ns: u64,
        /// Of the tokens since the last such event, where they are wanted. The first token of a prompt has none.
        logprobs: Vec<TokenLogprob>,
    },
    /// Committed since the last event.
    Delta {
        /// The sender's name.
        ticket: Ticket,
        /// What.
        delta: Delta,
    },
    /// The choice holds another number of KV pages than when that was last said, where [`Command::ReportPages`] was
    /// given: what a tick took and gave back is said once, as what it came to. A choice that had pages says that it has
    /// none before its last event.
    Pages {
        /// The sender's name.
        ticket: Ticket,
        /// Pages that it holds, of [`PAGE_TOKENS`](crate::limits::PAGE_TOKENS) positions each.
        held: u32,
        /// Pages of the pool that nobody holds.
        free: u32,
    },
    /// The choice is over and holds nothing any more.
    Finished {
        /// The sender's name.
        ticket: Ticket,
        /// Why.
        finish: Finish,
        /// Everything that was counted.
        report: Box<Report>,
    },
    /// Cancelled as asked; it holds nothing any more.
    Cancelled {
        /// The sender's name.
        ticket: Ticket,
        /// Committed ids that no delta has said.
        tokens: Vec<TokenId>,
        /// Text that no delta has said, what was held back of it included.
        said: Said,
        /// What was counted until then; of the prompt, the tokens that were computed.
        report: Box<Report>,
    },
    /// Never ran.
    Refused {
        /// The sender's name.
        ticket: Ticket,
        /// Why.
        error: AdmitError,
    },
}

impl Event {
    /// Whose event it is.
    pub fn ticket(&self) -> Ticket {
        match self {
            Self::Admitted { ticket, .. }
            | Self::Prompt { ticket, .. }
            | Self::Delta { ticket, .. }
            | Self::Pages { ticket, .. }
            | Self::Finished { ticket, .. }
            | Self::Cancelled { ticket, .. }
            | Self::Refused { ticket, .. } => *ticket,
        }
    }
}

/// Draft accounting of one proposer or of all. `proposed = trimmed + drafted` and
/// `drafted = accepted + rejected + unreached + discarded`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DraftCounts {
    /// Produced by a proposer.
    pub proposed: u64,
    /// Cut before verification (room, pages, window, constraint).
    pub trimmed: u64,
    /// Was a row of a verify pass.
    pub drafted: u64,
    /// Committed.
    pub accepted: u64,
    /// The row where target and draft differ.
    pub rejected: u64,
    /// Behind a rejected row.
    pub unreached: u64,
    /// Behind the point where the choice ended.
    pub discarded: u64,
}

/// Suffix look-ups of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SuffixCounts {
    /// Queries = hits + misses.
    pub lookups: u64,
    /// Queries that returned at least one token.
    pub hits: u64,
    /// Queries that returned nothing.
    pub misses: u64,
    /// Steps without room for a tail.
    pub skipped: u64,
    /// Sum of look-up times.
    pub lookup_ns: u64,
    /// Worst look-up.
    pub lookup_ns_max: u64,
    /// Indexing of committed tokens.
    pub extend_ns: u64,
    /// Sum of match lengths over hits.
    pub match_len_sum: u64,
}

/// Why speculation was turned down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TurnedDown {
    /// Steps before it.
    pub after_step: u64,
    /// Always "cost" so far: measured cost exceeded the expected gain.
    pub reason: &'static str,
}

/// Why more of a prompt had to be computed than its last token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Miss {
    /// The prefix cache was not asked.
    Disabled,
    /// The prefix cache was not asked, as every row of the prompt has to be computed for its log-probabilities.
    PromptLogprobs,
    /// The same tokens are known in another namespace.
    Namespace,
    /// Nothing that begins like it is known.
    Cold,
    /// It was known, and went to make room.
    Evicted,
    /// More of it is known than its state was saved for.
    NoCheckpoint,
    /// What is known goes on otherwise.
    Diverged,
    /// What is known ends there: the rest is new.
    End,
}

impl Miss {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::Disabled,
        Self::PromptLogprobs,
        Self::Namespace,
        Self::Cold,
        Self::Evicted,
        Self::NoCheckpoint,
        Self::Diverged,
        Self::End,
    ];

    /// The name in answers and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::PromptLogprobs => "prompt_logprobs",
            Self::Namespace => "namespace",
            Self::Cold => "cold",
            Self::Evicted => "evicted",
            Self::NoCheckpoint => "no_checkpoint",
            Self::Diverged => "diverged",
            Self::End => "end",
        }
    }
}

/// Everything counted for one choice. Source of the `timings` and `speculation` blocks; the identities hold (tested).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: u64,
    /// Leading prompt tokens that the prefix cache knew, used or not.
    pub cache_matched: u64,
    /// Prompt tokens that the prefix cache learnt.
    pub cache_written: u64,
    /// Why not all of the prompt but its last token was taken from it; `None` where it was.
    pub cache_miss: Option<Miss>,
    /// Committed completion tokens, end token included.
    pub completion_tokens: u64,
    /// Verify steps = windows + plain.
    pub steps: u64,
    /// Steps with at least one draft.
    pub windows: u64,
    /// Steps without drafts.
    pub plain: u64,
    /// Tokens taken from prompt logits, i.e. committed by the request's first decode step.
    pub first: u64,
    /// Target-chosen tokens committed by later steps. With the forced ones of those steps they are the steps whose walk
    /// did not end inside the drafts.
    pub bonus: u64,
    /// Tokens that no draft had foreseen, committed where the constraint left one token alone.
    pub forced: u64,
    /// Tokens of thinking among the completion's, its markers included.
    pub reasoning: u64,
    /// Sequences of bytes that were no characters and are U+FFFD in the text.
    pub invalid_utf8: u64,
    /// Drafts trimmed because the constraint does not allow them.
    pub trimmed_constraint: u64,
    /// Time that masks of window rows took.
    pub mask_ns: u64,
    /// All proposers.
    pub total: DraftCounts,
    /// The MTP block.
    pub mtp: DraftCounts,
    /// Its drafting time.
    pub mtp_draft_ns: u64,
    /// The suffix index.
    pub suffix: DraftCounts,
    /// Its look-ups.
    pub suffix_lookups: SuffixCounts,
    /// Composite windows with both parts.
    pub tail_windows: u64,
    /// ... whose whole MTP prefix agreed.
    pub tail_tested: u64,
    /// Suffix drafts of the tested ones.
    pub tail_drafted_tested: u64,
    /// Suffix drafts accepted in composite windows.
    pub tail_accepted: u64,
    /// `width_hist[k]` = steps with k drafts; sums to `steps`.
    pub width_hist: Vec<u64>,
    /// `accepted_hist[c]` = windows with c committed drafts; sums to `windows`.
    pub accepted_hist: Vec<u64>,
    /// Per 0-based window position: (drafted, accepted).
    pub per_position: Vec<(u64, u64)>,
    /// Whether and why speculation was turned down.
    pub turned_down: Option<TurnedDown>,
    /// Times preempted.
    pub preempted: u64,
    /// Nanoseconds in which the row waited for a slow reader.
    pub stall_ns: u64,
    /// Arrival in the inbox to admission.
    pub queue_ns: u64,
    /// Admission to the end of prefill.
    pub prompt_ns: u64,
    /// End of prefill to the last commit.
    pub predicted_ns: u64,
    /// Arrival to the first committed token.
    pub ttft_ns: u64,
    /// Arrival to the end.
    pub total_ns: u64,
}
