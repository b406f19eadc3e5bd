//! Chat logs of aider: Markdown.
//!
//! | Line | Is |
//! |---|---|
//! | `# aider chat started at ..` | the beginning of another session |
//! | `#### text` | the user |
//! | `> text` | what aider and its tools print |
//! | any other | what the model wrote, once the user has said something; before that a banner or a foreword |
//!
//! Lines of the user and of tools end in two spaces, which are not part of them. Neighbouring lines of a kind are one
//! turn. Source: github.com/Aider-AI/aider, `.aider.chat.history.md`.

use super::{Role, Session, Turn};

/// First line of a session.
const STARTED: &str = "# aider chat started at ";
/// Around a transcript on a page of the web site, with its end.
const TRANSCRIPT: &str = "<div class=\"chat-transcript\"";

/// Whether the text is such a log, with something that a user says; a text that only quotes logs has nothing of the kind.
pub(super) fn is_log(text: &str) -> bool {
    let logged = text.starts_with(STARTED) || text.contains(&format!("\n{STARTED}"));
    (logged || text.contains(TRANSCRIPT)) && text.contains("\n#### ")
}

/// The sessions of a log. Those in which nobody says anything are left out.
pub(super) fn sessions(text: &str, name: &str) -> Vec<Session> {
    let mut sessions = Vec::new();
    let mut log = Log::named(name);
    for line in text.lines() {
        if let Some(when) = line.strip_prefix(STARTED) {
            sessions.extend(std::mem::replace(&mut log, Log::named(when.trim_end())).end());
        } else {
            log.line(line);
        }
    }
    sessions.extend(log.end());
    sessions
}

/// Who a line is by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    User,
    Tool,
    Rest,
}

/// A session in the making.
struct Log {
    session: Session,
    by: By,
    text: String,
    /// The user has said something.
    asked: bool,
}

impl Log {
    fn named(id: &str) -> Self {
        let session = Session { id: id.to_owned(), source: "aider".into(), ..Session::default() };
        Self { session, by: By::Rest, text: String::new(), asked: false }
    }

    fn line(&mut self, line: &str) {
        let (by, text) = match (line.strip_prefix("####"), line.strip_prefix('>')) {
            (Some(rest), _) if rest.is_empty() || rest.starts_with(' ') => (By::User, rest),
            (_, Some(rest)) => (By::Tool, rest),
            _ => (By::Rest, line),
        };
        let text = match by {
            By::Rest => text,
            By::User | By::Tool => text.strip_prefix(' ').unwrap_or(text).trim_end_matches(' '),
        };
        // A blank line between two turns belongs to neither.
        if by == By::Rest && self.by != By::Rest && text.trim().is_empty() {
            return;
        }
        if by != self.by {
            self.turn();
            self.by = by;
        }
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// Ends the turn in the making.
    fn turn(&mut self) {
        let text = std::mem::take(&mut self.text);
        let text = match self.by {
            By::Rest => text.trim_matches('\n').trim_end_matches("</div>").trim_matches('\n'),
            By::User | By::Tool => text.trim_end_matches('\n'),
        };
        if text.trim().is_empty() {
            return;
        }
        let turn = match self.by {
            By::User => Turn::new(Role::User, text),
            By::Tool => Turn::new(Role::Tool, text),
            By::Rest if self.asked => Turn::output(text),
            By::Rest => Turn::new(Role::Tool, text),
        };
        self.asked |= self.by == By::User;
        self.session.turns.push(turn);
    }

    fn end(mut self) -> Option<Session> {
        self.turn();
        (!self.session.turns.is_empty()).then_some(self.session)
    }
}
