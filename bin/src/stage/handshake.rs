//! The first messages of a connection: are we of one version, do we have the same key, do we run two halves of one model.
//!
//! ```text
//! first                                       last
//! Hello      nonce a, keyed?           ──►
//!                                      ◄──    Challenge  nonce b, keyed?, HMAC(key; "last", a, b)
//! Offer      HMAC(key; "first", a, b), facts  ──►
//!                                      ◄──    Accept     facts, shape, what its MTP block is
//! ```
//! Either may send Refuse instead, with the reason; a last stage that has a first one already sends Taken instead of Accept,
//! and is asked again later. The key itself is never sent, and each side proves that it has it
//! before the other tells anything of the model. It is asked for when the connection is made: what follows is neither
//! encrypted nor signed, so a network that others can write to needs a tunnel.

use std::io;
use std::path::Path;

use engine::stage::wire::{Put as _, Take, WireError};
use engine::step::Shape;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::facts::Facts;
use crate::serve::read_key_file;

/// Bytes of the longest message of a handshake: digests of all tensors.
pub const BODY_BYTES: usize = 2 << 20;
/// Of a reason.
const REASON_BYTES: usize = 4096;

/// Unpredictable bytes.
pub type Nonce = [u8; 32];

/// A new nonce.
///
/// # Errors
/// If the system has no random bytes.
pub fn nonce() -> io::Result<Nonce> {
    let mut out = [0; 32];
    getrandom::fill(&mut out).map_err(|e| io::Error::other(format!("no random bytes: {e}")))?;
    Ok(out)
}

/// What both stages must have, or that they need none.
#[derive(Clone, Default)]
pub struct Key(Option<Vec<u8>>);

impl Key {
    /// The first line of a file.
    ///
    /// # Errors
    /// If it is no plain file, cannot be read, or has fewer than 16 characters.
    pub fn load(file: Option<&Path>) -> io::Result<Self> {
        let Some(path) = file else { return Ok(Self(None)) };
        let named = |e: io::Error| io::Error::new(e.kind(), format!("--stage-key-file {}: {e}", path.display()));
        let text = read_key_file(path).map_err(named)?;
        let line = text.lines().next().unwrap_or_default().trim();
        if line.len() < 16 {
            let short =
                format!("its first line has {} characters, expected at least 16 that nobody can guess", line.len());
            return Err(named(io::Error::new(io::ErrorKind::InvalidData, short)));
        }
        Ok(Self(Some(line.as_bytes().to_vec())))
    }

    /// Whether one is needed.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    fn mac(&self, role: &[u8], a: &Nonce, b: &Nonce) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.as_ref()?).expect("a key of any length");
        [role, a, b].into_iter().for_each(|part| mac.update(part));
        Some(mac)
    }

    /// That this side has the key; zeros where none is needed.
    pub fn proof(&self, role: &[u8], a: &Nonce, b: &Nonce) -> [u8; 32] {
        self.mac(role, a, b).map_or([0; 32], |mac| mac.finalize().into_bytes().into())
    }

    /// Whether the other side has it, in constant time.
    pub fn check(&self, role: &[u8], a: &Nonce, b: &Nonce, proof: &[u8; 32]) -> bool {
        self.mac(role, a, b).is_none_or(|mac| mac.verify_slice(proof).is_ok())
    }

    /// What is wrong where only one side has a key.
    ///
    /// # Errors
    /// Which.
    pub fn agrees(&self, theirs: bool, me: &str, peer: &str) -> Result<(), String> {
        let (with, without) = match (self.is_some(), theirs) {
            (true, false) => (me, peer),
            (false, true) => (peer, me),
            _ => return Ok(()),
        };
        Err(format!("{with} has a key and {without} has none; give both the same --stage-key-file"))
    }
}

/// Names of the sides, in proofs.
pub const FIRST: &[u8] = b"slipstream stage: first";
/// See [`FIRST`].
pub const LAST: &[u8] = b"slipstream stage: last";

/// 32 bytes.
///
/// # Errors
/// [`WireError::Short`].
pub fn take_32(take: &mut Take<'_>, what: &'static str) -> Result<[u8; 32], WireError> {
    let mut out = [0; 32];
    for word in out.chunks_exact_mut(4) {
        word.copy_from_slice(&take.u32(what)?.to_le_bytes());
    }
    Ok(out)
}

/// `Hello` and, with a proof, `Challenge`.
pub fn put_greeting(out: &mut Vec<u8>, nonce: &Nonce, keyed: bool, proof: Option<&[u8; 32]>) {
    out.extend_from_slice(nonce);
    out.put_u8(u8::from(keyed));
    out.extend(proof.into_iter().flatten());
}

/// Reads a `Hello`.
///
/// # Errors
/// [`WireError`]
pub fn take_hello(body: &[u8]) -> Result<(Nonce, bool), WireError> {
    let mut take = Take::new(body);
    let out = (take_32(&mut take, "a nonce")?, take.flag("the flag of a key")?);
    take.end().map(|()| out)
}

/// Reads a `Challenge`.
///
/// # Errors
/// [`WireError`]
pub fn take_challenge(body: &[u8]) -> Result<(Nonce, bool, [u8; 32]), WireError> {
    let mut take = Take::new(body);
    let out = (take_32(&mut take, "a nonce")?, take.flag("the flag of a key")?, take_32(&mut take, "a proof")?);
    take.end().map(|()| out)
}

/// `Offer`.
pub fn put_offer(out: &mut Vec<u8>, proof: &[u8; 32], facts: &Facts) {
    out.extend_from_slice(proof);
    facts.put(out);
}

/// Reads an `Offer`: the proof, and the bytes of the facts, which are worth reading when the proof is right.
///
/// # Errors
/// [`WireError`]
pub fn take_offer(body: &[u8]) -> Result<([u8; 32], &[u8]), WireError> {
    let proof = take_32(&mut Take::new(body), "a proof")?;
    Ok((proof, &body[32..]))
}

/// Reads facts that are alone.
///
/// # Errors
/// [`WireError`]
pub fn take_facts(body: &[u8]) -> Result<Facts, WireError> {
    let mut take = Take::new(body);
    let facts = Facts::take(&mut take)?;
    take.end().map(|()| facts)
}

/// What the last stage tells of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// See [`Facts`].
    pub facts: Facts,
    /// Of its executor.
    pub shape: Shape,
    /// Why it has no MTP block, if so.
    pub mtp: String,
}

impl Accepted {
    /// Appends it.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.facts.put(out);
        let Shape { vocab, hidden_width, context_train, mtp, recurrent, hidden_rows, checkpoint_bytes } = self.shape;
        for number in [vocab, hidden_width, context_train, hidden_rows, checkpoint_bytes] {
            out.put_u64(number as u64);
        }
        out.put_u8(u8::from(mtp));
        out.put_u8(u8::from(recurrent));
        out.put_bytes(self.mtp.as_bytes());
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`WireError`]
    pub fn take(body: &[u8]) -> Result<Self, WireError> {
        let mut take = Take::new(body);
        let facts = Facts::take(&mut take)?;
        // `whole_shape` holds them against what this side knows.
        let mut number = |what| {
            let n = take.u64(what)?;
            usize::try_from(n).map_err(|_| WireError::bad(what, format!("is {n}")))
        };
        let (vocab, hidden_width) = (number("the vocabulary")?, number("the hidden row")?);
        let (context_train, hidden_rows) = (number("the model's context")?, number("hidden rows")?);
        let checkpoint_bytes = number("a checkpoint")?;
        let (mtp, recurrent) = (take.flag("the flag of the MTP block")?, take.flag("the flag of recurrent states")?);
        let shape = Shape { vocab, hidden_width, context_train, mtp, recurrent, hidden_rows, checkpoint_bytes };
        let out = Self { facts, shape, mtp: take.text("the state of the MTP block", REASON_BYTES)? };
        take.end().map(|()| out)
    }
}

/// `Refuse`.
pub fn put_reason(out: &mut Vec<u8>, reason: &str) {
    out.put_bytes(&reason.as_bytes()[..reason.len().min(REASON_BYTES)]);
}

/// Reads a `Refuse`.
///
/// # Errors
/// [`WireError`]
pub fn take_reason(body: &[u8]) -> Result<String, WireError> {
    Take::new(body).text("a reason", REASON_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It stands for this side in this connection: neither what the peer sent nor what was seen before can be sent back.
    #[test]
    fn a_proof_is_of_one_key_one_side_and_both_nonces() {
        let [key, other] =
            ["correct horse battery staple", "correct horse battery stapler"].map(|k| Key(Some(k.into())));
        let (a, b) = ([1; 32], [2; 32]);
        let proof = key.proof(FIRST, &a, &b);
        assert!(key.check(FIRST, &a, &b, &proof));
        assert!(!other.check(FIRST, &a, &b, &proof), "another key");
        assert!(!key.check(LAST, &a, &b, &proof), "the other side");
        assert!(!key.check(FIRST, &[3; 32], &b, &proof), "another first nonce");
        assert!(!key.check(FIRST, &a, &[3; 32], &proof), "another second nonce");
        assert!(!key.check(FIRST, &b, &a, &proof), "in another order");
        assert!(!key.check(FIRST, &a, &b, &[0; 32]), "none at all");
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }
}
