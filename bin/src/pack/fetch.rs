//! `fetch`: brings a model from a hub into the cache, and says where it is.

use std::fmt::Write as _;

use clap::Args;

use crate::hub::{self, Fetched, Reference, Settings, Tell, Wanted};
use crate::memory::human;
use crate::pack::PackError;
use crate::report;

/// Flags of the verb.
#[derive(Clone, Debug, Args)]
pub struct FetchFlags {
    /// hf:ORG/NAME, then maybe @REVISION (a branch, tag or commit; else main) and :QUANT (else the only model, and of
    /// several the one of Q4_K_M) or :FILE.gguf. All shards of a split model come, and all files of a layer package.
    #[arg(value_name = "hf:ORG/NAME[@REVISION][:QUANT]")]
    pub reference: String,
    /// Also the model's MTP sidecar, mtp-*.gguf.
    #[arg(long)]
    pub with_mtp: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Asks the hub and brings what is missing.
///
/// # Errors
/// [`PackError`].
pub fn fetch(flags: &FetchFlags) -> Result<Fetched, PackError> {
    let reference: Reference = flags.reference.parse()?;
    let tell = Tell { note: &|line| report::note(line), progress: !flags.json };
    let wanted = if flags.with_mtp { Wanted::ModelAndSidecar } else { Wanted::Model };
    Ok(hub::fetch(&reference, wanted, &Settings::from_env()?, tell)?)
}

/// For people.
pub fn text(fetched: &Fetched) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<14}{value}");
    };
    line("model", fetched.model.display().to_string());
    if let Some(mtp) = &fetched.mtp {
        line("MTP sidecar", format!("{} (--spec-draft-model)", mtp.display()));
    }
    line("commit", format!("{} of {}, {}", fetched.commit, fetched.repository, fetched.revision));
    for file in &fetched.files {
        let how = if file.cached { "was there" } else { "fetched" };
        line("file", format!("{} ({}, {how})", file.name, human(file.bytes as usize)));
    }
    out
}
