//! `verify`: whether a container still holds what was put into it. A module for each kind of container.

use std::path::PathBuf;

use clap::Args;
use engine_io::package;
use serde::Serialize;

use super::{PackError, verify_package, verify_set};

/// Flags of the verb.
#[derive(Clone, Debug, Args)]
pub struct VerifyFlags {
    /// The folder of a layer package, a grafted set (its directory or a shard), the file of a stage, or a model.
    pub path: PathBuf,
    /// The model that a layer package or a stage was cut from, to compare every tensor with; of a stage also its package.
    #[arg(long, value_name = "MODEL")]
    pub source: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// In a layer package.
    Package(verify_package::Report),
    /// In a grafted set, a stage, or a model.
    Set(verify_set::Report),
}

/// Verifies what the path leads to.
///
/// # Errors
/// [`PackError`]: what cannot be read at all. What is wrong with the container is in the report.
pub fn verify(flags: &VerifyFlags) -> Result<Report, PackError> {
    let VerifyFlags { path, source, json } = flags;
    match (package::folder(path), source) {
        (Some(folder), source) => verify_package::verify(&folder, source.as_deref(), *json).map(Report::Package),
        (None, None) => verify_set::verify(path, *json).map(Report::Set),
        (None, Some(source)) => verify_set::stage(path, source, *json).map(Report::Set),
    }
}

/// The code of a report.
pub fn code(report: &Report) -> u8 {
    match report {
        Report::Package(report) => verify_package::code(report),
        Report::Set(report) => verify_set::code(report),
    }
}

/// For people.
pub fn text(report: &Report) -> String {
    match report {
        Report::Package(report) => verify_package::text(report),
        Report::Set(report) => verify_set::text(report),
    }
}
