//! output: the output state of each row, at the level of bytes. Started by admit, written by commit alone after
//! that; copied by a slot fork.
//!
//! Bytes of committed tokens go in; whole characters come out. Held back are a tail that may become a stop string and
//! the first bytes of a character. The text is cut exactly before a stop string, wherever token borders lie; the one
//! that is complete first wins, the longest of those complete at the same byte.

use crate::api::Stop;
use crate::ids::Slot;

/// The table: one output state per slot.
#[derive(Debug)]
pub struct Outputs {
    /// Per slot: what is held back.
    pub state: Vec<Output>,
    /// Per slot: end and control tokens are shown.
    pub show_special: Vec<bool>,
}

impl Outputs {
    /// Empty states.
    pub fn new(slots: usize) -> Self {
        Self { state: vec![Output::default(); slots], show_special: vec![false; slots] }
    }

    /// Bytes of [`Self::new`]; what is held back of a text is a stop string at most.
    pub fn bytes_for(slots: usize) -> usize {
        slots * (size_of::<Output>() + size_of::<bool>())
    }

    /// Starts a row.
    pub fn start(&mut self, slot: Slot, show_special: bool) {
        self.state[slot.index()].held.clear();
        self.show_special[slot.index()] = show_special;
    }

    /// Copies a row.
    pub fn copy(&mut self, from: Slot, to: Slot) {
        self.state[to.index()] = self.state[from.index()].clone();
        self.show_special[to.index()] = self.show_special[from.index()];
    }
}

/// What one row holds back.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Output {
    held: Vec<u8>,
}

impl Output {
    /// Takes the bytes of one token and appends what is certain to `text`. Returns the index of the stop string that
    /// ended the text; nothing may follow then. With `obey` off a complete stop string is plain text.
    pub fn push(&mut self, bytes: &[u8], stop: &Stop, obey: bool, text: &mut String) -> Option<u32> {
        for &byte in bytes {
            self.held.push(byte);
            if !obey {
                continue;
            }
            let complete = stop
                .strings
                .iter()
                .enumerate()
                .filter(|(_, s)| !s.is_empty() && self.held.ends_with(s))
                .max_by_key(|(i, s)| (s.len(), std::cmp::Reverse(*i)));
            if let Some((i, s)) = complete {
                if !stop.include {
                    self.held.truncate(self.held.len() - s.len());
                }
                self.finish(text);
                return Some(i as u32);
            }
        }
        let certain = self.held.len() - self.possible_stop(stop);
        let taken = decode(&self.held[..certain], false, text);
        self.held.drain(..taken);
        None
    }

    /// Nothing follows: releases all that is held; a cut character becomes U+FFFD.
    pub fn finish(&mut self, text: &mut String) {
        decode(&self.held, true, text);
        self.held.clear();
    }

    /// Length of the longest held tail that is the beginning of a stop string.
    fn possible_stop(&self, stop: &Stop) -> usize {
        let longest = |s: &Vec<u8>| {
            let most = s.len().saturating_sub(1).min(self.held.len());
            (1..=most).rev().find(|&n| self.held.ends_with(&s[..n])).unwrap_or(0)
        };
        stop.strings.iter().map(longest).max().unwrap_or(0)
    }
}

/// Appends the characters of `bytes`, U+FFFD for every invalid sequence, and returns how many bytes were used up: all
/// of them, or without `last` all but a cut character at the end.
pub fn decode(bytes: &[u8], last: bool, text: &mut String) -> usize {
    let mut at = 0;
    while at < bytes.len() {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(s) => {
                text.push_str(s);
                return bytes.len();
            }
            Err(e) => {
                let valid = std::str::from_utf8(&bytes[at..at + e.valid_up_to()]).expect("valid up to here");
                text.push_str(valid);
                at += e.valid_up_to();
                match e.error_len() {
                    Some(n) => {
                        text.push('\u{fffd}');
                        at += n;
                    }
                    None if last => {
                        text.push('\u{fffd}');
                        return bytes.len();
                    }
                    None => return at,
                }
            }
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `pieces` and returns the deltas joined by `|`, and the stop string that ended it.
    fn run(pieces: &[&[u8]], stop: &Stop) -> (String, Option<u32>) {
        let (mut output, mut deltas) = (Output::default(), Vec::new());
        for p in pieces {
            let mut text = String::new();
            let hit = output.push(p, stop, true, &mut text);
            deltas.push(text);
            if hit.is_some() {
                assert_eq!(output, Output::default(), "nothing is held after the end");
                return (deltas.join("|"), hit);
            }
        }
        let mut text = String::new();
        output.finish(&mut text);
        deltas.push(text);
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
        let (mut output, mut text) = (Output::default(), String::new());
        assert_eq!(output.push(b"ab", &stop, false, &mut text), None);
        assert_eq!(output.push(b"cab", &stop, true, &mut text), Some(0));
        assert_eq!(text, "abc");
    }
}
