//! channels: what a text is made of. A model thinks, says something, and calls tools; it marks the borders with tokens
//! of its own. Pure.
//!
//! ```text
//!  text   plan </think> \n\n Ok. \n <tool_call> {"name": .. } </tool_call>
//!  run    R    M        G    C   G  M           Call(0)       M
//! ```

use serde::{Deserialize, Serialize};

use crate::ids::TokenId;

/// Whose part of the text it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default, Serialize, Deserialize)]
pub enum Channel {
    /// Thinking.
    Reasoning,
    /// The answer.
    #[default]
    Content,
    /// The inside of a call block, counted from 0 in a choice. One block may hold several calls.
    Call(u32),
    /// A token that ends one channel and begins another.
    Marker,
    /// Newlines between two channels that belong to neither.
    Gap,
}

/// So many bytes of a text are one channel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Which.
    pub channel: Channel,
    /// Bytes, at least one.
    pub bytes: usize,
}

/// The tokens with which a model marks its channels. Text that merely spells a marker stays text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Markers {
    /// The text begins inside of thinking.
    pub thinks: bool,
    /// Begin and end of thinking.
    pub reasoning: Option<(TokenId, TokenId)>,
    /// Begin of a call block, and its end where it has one; without one it goes on to the end of the text.
    pub call: Option<(TokenId, Option<TokenId>)>,
    /// Content that begins with one of these is a call block without a marker. White space does not count, neither here
    /// nor in the text.
    pub openings: Vec<Vec<u8>>,
}

/// Bytes of content that are looked at for an opening.
const OPENING_BYTES: usize = 256;

impl Markers {
    /// All tokens that mark something.
    pub fn tokens(&self) -> Vec<TokenId> {
        let pair = |(start, end)| [Some(start), end];
        let reasoning = self.reasoning.map(|(start, end)| (start, Some(end)));
        reasoning.into_iter().chain(self.call).flat_map(pair).flatten().collect()
    }

    /// The channel of the text's first byte.
    pub fn first(&self) -> Channel {
        if self.thinks { Channel::Reasoning } else { Channel::Content }
    }

    /// The channel behind `token`, if it is a marker in `channel`. `calls`: call blocks so far.
    pub fn follow(&self, channel: Channel, token: TokenId, calls: u32) -> Option<Channel> {
        let (think, thought) = self.reasoning.unzip();
        let (call, called) = self.call.unzip();
        // A block that is begun inside of another has ended that.
        if call == Some(token) {
            return Some(Channel::Call(calls));
        }
        match channel {
            Channel::Reasoning if thought == Some(token) => Some(Channel::Content),
            Channel::Content if think == Some(token) => Some(Channel::Reasoning),
            Channel::Call(_) if called.flatten() == Some(token) => Some(Channel::Content),
            _ => None,
        }
    }

    /// Whether content that begins with `text` is a call; `None` while that is open.
    pub fn opens(&self, text: &[u8]) -> Option<bool> {
        let solid: Vec<u8> = text.iter().copied().filter(|b| !b.is_ascii_whitespace()).collect();
        if self.openings.iter().any(|opening| solid.starts_with(opening)) {
            return Some(true);
        }
        let may = text.len() < OPENING_BYTES && self.openings.iter().any(|opening| opening.starts_with(&solid));
        if may { None } else { Some(false) }
    }
}

/// Text and its runs, in order. Without runs all of it is content.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Said {
    /// Whole characters.
    pub text: String,
    /// Neighbours differ in channel; together they are the text. None where the request names no markers.
    pub runs: Vec<Run>,
}

impl Said {
    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// What was appended to the text from byte `from` on is `channel`'s.
    pub fn mark(&mut self, channel: Channel, from: usize) {
        let bytes = self.text.len() - from;
        match self.runs.last_mut() {
            _ if bytes == 0 => {}
            Some(last) if last.channel == channel => last.bytes += bytes,
            _ => self.runs.push(Run { channel, bytes }),
        }
    }

    /// Appends what was said later.
    pub fn append(&mut self, later: &Self) {
        self.text.push_str(&later.text);
        for run in &later.runs {
            match self.runs.last_mut() {
                Some(last) if last.channel == run.channel => last.bytes += run.bytes,
                _ => self.runs.push(*run),
            }
        }
    }

    /// The parts of the text with their channels.
    pub fn parts(&self) -> impl Iterator<Item = (Channel, &str)> + '_ {
        let whole = (self.runs.is_empty() && !self.text.is_empty()).then_some((Channel::Content, self.text.as_str()));
        let mut from = 0;
        whole.into_iter().chain(self.runs.iter().map(move |run| {
            let part = &self.text[from..from + run.bytes];
            from += run.bytes;
            (run.channel, part)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_is_seen_through_white_space() {
        let markers = Markers { openings: vec![b"{\"name\":\"ls\"".to_vec()], ..Markers::default() };
        assert_eq!(markers.opens(b""), None);
        assert_eq!(markers.opens(b" {\n \"name\""), None);
        assert_eq!(markers.opens(b"{ \"name\": \"ls\""), Some(true));
        assert_eq!(markers.opens(b"{\"name\": \"lsof"), Some(false));
        assert_eq!(markers.opens(b"Hello"), Some(false));
        assert_eq!(markers.opens(&[b' '; 255]), None);
        assert_eq!(markers.opens(&[b' '; 256]), Some(false), "it is not looked for without end");
    }

    #[test]
    fn markers_act_where_they_mean_something() {
        let (think, thought, call, called) = (TokenId(1), TokenId(2), TokenId(3), TokenId(4));
        let m = Markers { reasoning: Some((think, thought)), call: Some((call, Some(called))), ..Markers::default() };
        use Channel::{Call, Content, Reasoning};
        assert_eq!(m.follow(Content, think, 0), Some(Reasoning));
        assert_eq!(m.follow(Content, thought, 0), None, "nothing is open");
        assert_eq!(m.follow(Reasoning, think, 0), None);
        assert_eq!(m.follow(Reasoning, thought, 0), Some(Content));
        assert_eq!(m.follow(Reasoning, call, 0), Some(Call(0)));
        assert_eq!(m.follow(Call(0), thought, 1), None);
        assert_eq!(m.follow(Call(0), called, 1), Some(Content));
        assert_eq!(m.follow(Content, called, 1), None);
        assert_eq!(m.follow(Call(0), call, 1), Some(Call(1)));
    }

    #[test]
    fn parts_are_the_text() {
        let mut said = Said { text: "ab".to_owned(), runs: Vec::new() };
        assert_eq!(said.parts().collect::<Vec<_>>(), [(Channel::Content, "ab")]);
        said.mark(Channel::Reasoning, 0);
        said.text.push('c');
        said.mark(Channel::Gap, 2);
        said.mark(Channel::Content, 3);
        let later = Said { text: "dé".to_owned(), runs: vec![Run { channel: Channel::Gap, bytes: 3 }] };
        said.append(&later);
        assert_eq!(said.parts().collect::<Vec<_>>(), [(Channel::Reasoning, "ab"), (Channel::Gap, "cdé")]);
        assert_eq!(Said::default().parts().count(), 0);
    }
}
