//! Ids: one u32 newtype per kind of thing, `u32::MAX` reserved for "none".
//!
//! Only [`RequestId`] leaves the tick (channels, the C handle, logs: `r3v7`); every other id is looked up through its
//! own table alone.

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            /// The reserved value that names nothing.
            pub const NONE: Self = Self(u32::MAX);

            /// Index into the columns of the owning table.
            #[inline]
            pub fn index(self) -> usize {
                debug_assert!(self != Self::NONE, concat!(stringify!($name), "::NONE used as an index"));
                self.0 as usize
            }

            /// Whether this is [`Self::NONE`].
            #[inline]
            pub fn is_none(self) -> bool {
                self == Self::NONE
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if self.is_none() { f.write_str(concat!($prefix, "-")) } else { write!(f, concat!($prefix, "{}"), self.0) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

id!(
    /// A row of the vocabulary.
    TokenId,
    "t"
);
id!(
    /// A row of the requests table.
    Slot,
    "s"
);
id!(
    /// A page of the KV pool: `limits::PAGE_TOKENS` positions, every layer and the MTP block's cache included.
    PageId,
    "p"
);
id!(
    /// A row of the recurrent state, its ingredient log and its hidden ring in the Executor.
    StateSlot,
    "z"
);
id!(
    /// A saved copy of a sequence's recurrent state and MTP carry in the Executor.
    CheckpointId,
    "c"
);

/// Names one admitted request for as long as it lives: a slot and the generation of that slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId {
    /// Row of the requests table.
    pub slot: Slot,
    /// Incremented whenever the row is reused, so that a late message never reaches a stranger.
    pub generation: NonZeroU32,
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}v{}", self.slot.0, self.generation)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Names a submission from the moment its sender made it; chosen by the sender, unique per engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u64);
