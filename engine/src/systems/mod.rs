//! Systems: free functions, one per file; the borrowed columns of a signature are its access declaration.

pub mod admit;
pub mod commit;
pub mod draft_mtp;
pub mod emit;
pub mod extend_suffix;
pub mod index_suffix;
pub mod intake;
pub mod keep;
pub mod plan;
pub mod prefill;
pub mod retire;
pub mod verify;
