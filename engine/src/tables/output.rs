//! output: the output state of each row, at the level of bytes. Started by admit, written by commit alone after
//! that; copied by a slot fork.
//!
//! Bytes of committed tokens go in; whole characters come out, and whose channel they are. Held back are a tail that may
//! become a stop string or stand before a call block, and the first bytes of a character. The text is cut exactly before
//! a stop string, wherever token borders lie; the one that is complete first wins, the longest of those complete at the
//! same byte. Stop strings are looked for in content alone.

use std::sync::Arc;

use crate::api::Stop;
use crate::channels::{Channel, Markers, Said};
use crate::ids::{Slot, TokenId};

/// The table: one output state per slot.
#[derive(Debug)]
pub struct Outputs {
    /// Per slot: what is held back.
    pub state: Vec<Output>,
    /// Per slot: end and control tokens are shown.
    pub show_special: Vec<bool>,
    /// Per slot: the borders of channels, where the request wants them told apart.
    pub markers: Vec<Option<Arc<Markers>>>,
}

impl Outputs {
    /// Empty states.
    pub fn new(slots: usize) -> Self {
        let markers = vec![None; slots];
        Self { state: vec![Output::default(); slots], show_special: vec![false; slots], markers }
    }

    /// Bytes of [`Self::new`]; what is held back of a text is a stop string at most, or newlines. Markers are the
    /// requests' own.
    pub fn bytes_for(slots: usize) -> usize {
        slots * (size_of::<Output>() + size_of::<bool>() + size_of::<Option<Arc<Markers>>>())
    }

    /// Starts a row.
    pub fn start(&mut self, slot: Slot, show_special: bool, markers: Option<Arc<Markers>>) {
        let s = slot.index();
        self.state[s].start(markers.as_deref());
        self.show_special[s] = show_special;
        self.markers[s] = markers;
    }

    /// Copies a row.
    pub fn copy(&mut self, from: Slot, to: Slot) {
        self.state[to.index()] = self.state[from.index()].clone();
        self.show_special[to.index()] = self.show_special[from.index()];
        self.markers[to.index()] = self.markers[from.index()].clone();
    }

    /// Takes a token of a row, see [`Output::token`].
    pub fn token(
        &mut self,
        slot: Slot,
        token: TokenId,
        bytes: &[u8],
        stop: &Stop,
        obey: bool,
        said: &mut Said,
    ) -> Option<u32> {
        let s = slot.index();
        self.state[s].token(token, bytes, self.markers[s].as_deref(), stop, obey, said)
    }

    /// Whether the next token of a row is one of thinking.
    pub fn thinks(&self, slot: Slot) -> bool {
        self.state[slot.index()].channel == Channel::Reasoning
    }
}

/// What one row holds back, and where it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Output {
    /// Bytes of `channel` that are not certain yet.
    held: Vec<u8>,
    channel: Channel,
    /// Channels are told apart.
    marked: bool,
    /// Newlines that come now stand between two channels.
    gap: bool,
    /// What is held may turn out to be a call block without a marker.
    opening: bool,
    /// Call blocks begun.
    calls: u32,
    /// Sequences of bytes that were no characters.
    invalid: u64,
}

/// Bytes of a text that are held back without an allocation.
const HELD: usize = 64;

impl Output {
    fn start(&mut self, markers: Option<&Markers>) {
        self.held.clear();
        let opening = markers.is_some_and(|m| !m.openings.is_empty());
        let (channel, marked) = (markers.map_or(Channel::Content, Markers::first), markers.is_some());
        let mut held = std::mem::take(&mut self.held);
        held.reserve(HELD);
        *self = Self { held, channel, marked, gap: false, opening, calls: 0, invalid: 0 };
    }

    /// Sequences of bytes of the text so far that were no characters and became U+FFFD.
    pub fn invalid(&self) -> u64 {
        self.invalid
    }

    /// Takes a token that shows `bytes` and appends what is certain to `said`. Returns the index of the stop string that
    /// ended the text; nothing may follow then. With `obey` off a complete stop string is plain text.
    pub fn token(
        &mut self,
        token: TokenId,
        bytes: &[u8],
        markers: Option<&Markers>,
        stop: &Stop,
        obey: bool,
        said: &mut Said,
    ) -> Option<u32> {
        if let Some(next) = markers.and_then(|m| m.follow(self.channel, token, self.calls)) {
            self.turn(next, bytes, said);
            return None;
        }
        for &byte in bytes {
            if let Some(hit) = self.byte(byte, markers, stop, obey, said) {
                return Some(hit);
            }
        }
        let held = match self.opening {
            true => self.held.len(),
            false => self.possible_stop(stop).max(if markers.is_some_and(|m| m.call.is_some()) {
                self.newlines()
            } else {
                0
            }),
        };
        self.release(self.held.len() - held, false, said);
        None
    }

    /// Nothing follows: releases all that is held; a cut character becomes U+FFFD.
    pub fn finish(&mut self, said: &mut Said) {
        self.release(self.held.len(), true, said);
        self.held.clear();
    }

    fn byte(&mut self, byte: u8, markers: Option<&Markers>, stop: &Stop, obey: bool, said: &mut Said) -> Option<u32> {
        if self.gap && byte == b'\n' {
            self.say(Channel::Gap, "\n", said);
            return None;
        }
        self.gap = false;
        self.held.push(byte);
        if self.opening && self.channel == Channel::Content {
            match markers.and_then(|m| m.opens(&self.held)) {
                None => {}
                Some(true) => {
                    self.opening = false;
                    self.channel = Channel::Call(self.calls);
                    self.calls += 1;
                }
                Some(false) => {
                    // Content after all: stop strings are looked for from its first byte on.
                    self.opening = false;
                    let content = std::mem::take(&mut self.held);
                    return content.into_iter().find_map(|byte| self.byte(byte, markers, stop, obey, said));
                }
            }
            return None;
        }
        if !obey || self.channel != Channel::Content {
            return None;
        }
        let complete = stop
            .strings
            .iter()
            .enumerate()
            .filter(|(_, s)| !s.is_empty() && self.held.ends_with(s))
            .max_by_key(|(i, s)| (s.len(), std::cmp::Reverse(*i)));
        let (i, s) = complete?;
        if !stop.include {
            self.held.truncate(self.held.len() - s.len());
        }
        self.finish(said);
        Some(i as u32)
    }

    /// A marker ends this channel and begins `next`.
    fn turn(&mut self, next: Channel, bytes: &[u8], said: &mut Said) {
        let calls = matches!(next, Channel::Call(_));
        // What stands between an answer and a call is the template's habit and no part of either.
        let gap = if calls { self.newlines() } else { 0 };
        self.release(self.held.len() - gap, true, said);
        self.say(Channel::Gap, &"\n".repeat(gap), said);
        self.held.clear();
        self.say(Channel::Marker, &String::from_utf8_lossy(bytes), said);
        self.calls += u32::from(calls);
        self.gap = next == Channel::Content;
        self.opening &= !calls;
        self.channel = next;
    }

    /// Releases the first `certain` bytes held, but for a cut character at their end; with `last` that too.
    fn release(&mut self, certain: usize, last: bool, said: &mut Said) {
        let from = said.text.len();
        let (taken, invalid) = decode(&self.held[..certain], last, &mut said.text);
        self.invalid += invalid;
        self.held.drain(..taken);
        if self.marked {
            said.mark(self.channel, from);
        }
    }

    fn say(&self, channel: Channel, text: &str, said: &mut Said) {
        let from = said.text.len();
        said.text.push_str(text);
        said.mark(channel, from);
    }

    /// Newlines at the end of what is held.
    fn newlines(&self) -> usize {
        if matches!(self.channel, Channel::Call(_)) {
            return 0;
        }
        self.held.iter().rev().take_while(|b| **b == b'\n').count()
    }

    /// Length of the longest held tail that is the beginning of a stop string.
    fn possible_stop(&self, stop: &Stop) -> usize {
        if self.channel != Channel::Content {
            return 0;
        }
        let longest = |s: &Vec<u8>| {
            let most = s.len().saturating_sub(1).min(self.held.len());
            (1..=most).rev().find(|&n| self.held.ends_with(&s[..n])).unwrap_or(0)
        };
        stop.strings.iter().map(longest).max().unwrap_or(0)
    }
}

/// Appends the characters of `bytes`, U+FFFD for every invalid sequence, and returns how many bytes were used up (all of
/// them, or without `last` all but a cut character at the end) and how many sequences were invalid.
pub fn decode(bytes: &[u8], last: bool, text: &mut String) -> (usize, u64) {
    let (mut at, mut invalid) = (0, 0);
    while at < bytes.len() {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(s) => {
                text.push_str(s);
                return (bytes.len(), invalid);
            }
            Err(e) => {
                let valid = std::str::from_utf8(&bytes[at..at + e.valid_up_to()]).expect("valid up to here");
                text.push_str(valid);
                at += e.valid_up_to();
                match e.error_len() {
                    Some(n) => {
                        text.push('\u{fffd}');
                        invalid += 1;
                        at += n;
                    }
                    None if last => {
                        text.push('\u{fffd}');
                        return (bytes.len(), invalid + 1);
                    }
                    None => return (at, invalid),
                }
            }
        }
    }
    (at, invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `pieces` and returns the deltas joined by `|`, and the stop string that ended it.
    fn run(pieces: &[&[u8]], stop: &Stop) -> (String, Option<u32>) {
        let (mut output, mut deltas) = (Output::default(), Vec::new());
        for p in pieces {
            let mut said = Said::default();
            let hit = output.token(TokenId(0), p, None, stop, true, &mut said);
            assert!(said.runs.is_empty(), "nobody asked");
            deltas.push(said.text);
            if hit.is_some() {
                let invalid = output.invalid();
                assert_eq!(output, Output { invalid, ..Output::default() }, "nothing is held after the end");
                return (deltas.join("|"), hit);
            }
        }
        let mut said = Said::default();
        output.finish(&mut said);
        deltas.push(said.text);
        (deltas.join("|"), None)
    }

    fn check(pieces: &[&str], stops: &[&str], text: &str, hit: Option<u32>) {
        let stop = Stop { strings: stops.iter().map(|s| s.as_bytes().to_vec()).collect(), ..Stop::default() };
        let pieces: Vec<&[u8]> = pieces.iter().map(|p| p.as_bytes()).collect();
        assert_eq!(run(&pieces, &stop), (text.to_owned(), hit));
    }

    #[test]
    fn stop_strings_are_cut_exactly() {
        check(&["hello", " world"], &[" wo"], "hello|", Some(0));
        check(&["a", "EN", "D", "b"], &["END"], "a||", Some(0)); // across tokens
        check(&["xxENDyy"], &["END"], "xx", Some(0)); // inside a token
        check(&["a", "EN", "X"], &["END"], "a||ENX|", None); // disproved
        check(&["a", "EN"], &["END"], "a||EN", None); // held at the end, nothing lost
        check(&["aab", "aabaac"], &["aabaac"], "|aab", Some(0)); // overlaps itself
        check(&["abc"], &["bc", "abc"], "", Some(1)); // complete at the same byte: the longest
        check(&["abc"], &["abc", "b"], "a", Some(1)); // complete first
        check(&["ab", "cd"], &["bcx", "cd"], "a|b", Some(1)); // one disproved, another found
        check(&["a\n", "\nb"], &["\n\n"], "a|", Some(0));
        check(&["a"], &[""], "a|", None);
    }

    #[test]
    fn the_stop_string_stays_when_asked() {
        let stop = Stop { strings: vec![b"END".to_vec()], include: true, ..Stop::default() };
        assert_eq!(run(&[b"aE", b"NDb"], &stop), ("a|END".to_owned(), Some(0)));
    }

    #[test]
    fn what_is_no_character_is_counted() {
        for (pieces, count) in [
            (&[&b"a\xf0\x9f"[..], &b"\xa6\x80"[..]][..], 0),
            (&[&b"a\xff"[..], &b"\xffb"[..]][..], 2),
            (&[&b"\xef\xbf\xbd"[..]][..], 0),
            (&[&b"a\xf0\x9f"[..]][..], 1),
            (&[&b"\xf0\x9f"[..], &b"a"[..]][..], 1),
        ] {
            let (mut output, mut said) = (Output::default(), Said::default());
            for piece in pieces {
                output.token(TokenId(0), piece, None, &Stop::default(), true, &mut said);
            }
            output.finish(&mut said);
            assert_eq!(output.invalid(), count, "{pieces:?}");
            output.start(None);
            assert_eq!(output.invalid(), 0);
        }
    }

    #[test]
    fn characters_are_never_cut() {
        let none = Stop::default();
        assert_eq!(run(&[b"\xe2\x82", b"\xac!"], &none), ("|\u{20ac}!|".to_owned(), None));
        assert_eq!(run(&[b"a\xff", b"b"], &none), ("a\u{fffd}|b|".to_owned(), None));
        assert_eq!(run(&[b"a\xf0\x9f", b"b"], &none), ("a|\u{fffd}b|".to_owned(), None));
        assert_eq!(run(&[b"a\xf0\x9f"], &none), ("a|\u{fffd}".to_owned(), None));
        // A stop string behind a cut character.
        let stop = Stop { strings: vec![b"X".to_vec()], ..Stop::default() };
        assert_eq!(run(&[b"\xf0\x9f", b"X"], &stop), ("|\u{fffd}".to_owned(), Some(0)));
    }

    /// Bytes that begin, continue, end and break characters, in all orders and cuts.
    #[test]
    fn any_bytes_in_any_pieces_are_their_lossy_text() {
        let bytes = [b'a', 0x80, 0xa0, 0xc3, 0xe2, 0xed, 0xf0, 0x9f, 0xff];
        let mut whole = [0; 4];
        for n in 0..bytes.len().pow(4) {
            for (i, byte) in whole.iter_mut().enumerate() {
                *byte = bytes[n / bytes.len().pow(i as u32) % bytes.len()];
            }
            let expected = String::from_utf8_lossy(&whole);
            for cuts in 0..1 << 3 {
                let mut pieces = vec![&whole[..]];
                for at in (1..4).filter(|at| cuts >> (at - 1) & 1 == 1) {
                    let last = pieces.pop().unwrap();
                    let (head, tail) = last.split_at(at - (4 - last.len()));
                    pieces.extend([head, tail]);
                }
                assert_eq!(run(&pieces, &Stop::default()).0.replace('|', ""), expected, "{pieces:x?}");
            }
        }
    }

    #[test]
    fn any_cut_into_tokens_gives_the_same_text() {
        let whole = "aaENaENDbb\u{20ac}END".as_bytes();
        let stop = Stop { strings: vec![b"END".to_vec(), "\u{20ac}E".into()], ..Stop::default() };
        for a in 0..whole.len() {
            for b in a..whole.len() {
                let (text, hit) = run(&[&whole[..a], &whole[a..b], &whole[b..]], &stop);
                assert_eq!((text.replace('|', "").as_str(), hit), ("aaENa", Some(0)), "cut at {a} and {b}");
            }
        }
    }

    #[test]
    fn before_min_tokens_a_stop_string_is_text() {
        let stop = Stop { strings: vec![b"ab".to_vec()], ..Stop::default() };
        let (mut output, mut said) = (Output::default(), Said::default());
        assert_eq!(output.token(TokenId(0), b"ab", None, &stop, false, &mut said), None);
        assert_eq!(output.token(TokenId(0), b"cab", None, &stop, true, &mut said), Some(0));
        assert_eq!(said.text, "abc");
    }

    const THINK: u32 = 1;
    const THOUGHT: u32 = 2;
    const CALL: u32 = 3;
    const CALLED: u32 = 4;

    fn markers(thinks: bool, openings: &[&str]) -> Markers {
        Markers {
            thinks,
            reasoning: Some((TokenId(THINK), TokenId(THOUGHT))),
            call: Some((TokenId(CALL), Some(TokenId(CALLED)))),
            openings: openings.iter().map(|s| s.as_bytes().to_vec()).collect(),
        }
    }

    /// Feeds a text in which `<`, `>`, `[` and `]` are the markers, cut into tokens of `size` bytes, and returns its
    /// parts as `R:..|M:..`, with the stop string that ended it.
    fn channels(text: &str, markers: &Markers, stops: &[&str], size: usize) -> (String, Option<u32>) {
        let stop = Stop { strings: stops.iter().map(|s| s.as_bytes().to_vec()).collect(), ..Stop::default() };
        let (mut output, mut said) = (Output::default(), Said::default());
        output.start(Some(markers));
        let mark = |b: u8| b"<>[]".iter().position(|m| *m == b);
        let mut tokens: Vec<(u32, Vec<u8>)> = Vec::new();
        for byte in text.bytes() {
            match (mark(byte), tokens.last_mut()) {
                (Some(m), _) => tokens.push((m as u32 + 1, vec![byte])),
                (None, Some((0, piece))) if piece.len() < size => piece.push(byte),
                (None, _) => tokens.push((0, vec![byte])),
            }
        }
        for (id, piece) in tokens {
            // What a tick has said is sent, and appended to what was.
            let mut news = Said::default();
            let hit = output.token(TokenId(id), &piece, Some(markers), &stop, true, &mut news);
            said.append(&news);
            if hit.is_some() {
                return (shown(&said), hit);
            }
        }
        output.finish(&mut said);
        (shown(&said), None)
    }

    fn shown(said: &Said) -> String {
        let name = |channel| match channel {
            Channel::Reasoning => "R".to_owned(),
            Channel::Content => "C".to_owned(),
            Channel::Call(n) => n.to_string(),
            Channel::Marker => "M".to_owned(),
            Channel::Gap => "G".to_owned(),
        };
        let parts: Vec<String> = said.parts().map(|(c, text)| format!("{}:{text}", name(c))).collect();
        assert_eq!(said.parts().map(|(_, text)| text).collect::<String>(), said.text);
        parts.join("|").replace('\n', "~")
    }

    #[test]
    fn markers_tell_the_channels_apart() {
        let check = |text: &str, thinks: bool, stops: &[&str], parts: &str, hit: Option<u32>| {
            for size in 1..6 {
                let found = channels(text, &markers(thinks, &[]), stops, size);
                assert_eq!(found, (parts.to_owned(), hit), "{text:?} by {size}");
            }
        };
        check(
            "<plan>\n\nOk.\n[x\n]\n[y]",
            false,
            &[],
            "M:<|R:plan|M:>|G:~~|C:Ok.|G:~|M:[|0:x~|M:]|G:~|M:[|1:y|M:]",
            None,
        );
        check("plan\n>\n\nOk\n\n", true, &[], "R:plan~|M:>|G:~~|C:Ok~~", None);
        // A call inside of thinking ends that; a call inside of a call, too.
        check("plan\n[x[y]z", true, &[], "R:plan|G:~|M:[|0:x|M:[|1:y|M:]|C:z", None);
        // Markers that mean nothing where they stand are text.
        check("a>b]c", false, &[], "C:a>b]c", None);
        check("[<>]", false, &[], "M:[|0:<>|M:]", None);
        // Stop strings are content's: not thinking's, not a call's, not the gap's, and not across channels.
        check("<END>\n\nxEND", false, &["END", "\n\n"], "M:<|R:END|M:>|G:~~|C:x", Some(0));
        check("[END]aEN<D>END", false, &["END"], "M:[|0:END|M:]|C:aEN|M:<|R:D|M:>", Some(0));
        // A character that a marker cuts off.
        check("a\u{e9}[x", false, &[], "C:a\u{e9}|M:[|0:x", None);
    }

    #[test]
    fn a_call_without_a_marker_is_known_by_its_opening() {
        let llama = |text: &str, stops: &[&str]| {
            let found: Vec<_> =
                (1..9).map(|size| channels(text, &markers(false, &["{\"name\":\"ls\""]), stops, size)).collect();
            assert!(found.iter().all(|f| *f == found[0]), "{found:?}");
            found[0].clone()
        };
        assert_eq!(llama("{\"name\": \"ls\", 1}", &["ls"]).0, "0:{\"name\": \"ls\", 1}");
        assert_eq!(llama("{\"name\": \"rm\", 1}", &["rm"]), ("C:{\"name\": \"".to_owned(), Some(0)));
        assert_eq!(llama("{\"name\"", &[]).0, "C:{\"name\"");
        assert_eq!(llama("Ok {\"name\": \"ls\"}", &[]).0, "C:Ok {\"name\": \"ls\"}");
    }
}
