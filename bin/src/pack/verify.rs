//! `verify`: whether a container still holds what was put into it. A module for each kind of container.

use std::path::PathBuf;

use clap::Args;
use engine_io::{ModelFile, OpenOptions, package};
use serde::Serialize;

use super::smoke::{self, Smoke};
use super::{PackError, error, verify_package, verify_set};

/// Flags of the verb.
#[derive(Clone, Debug, Args)]
pub struct VerifyFlags {
    /// The folder of a layer package, a grafted set (its directory or a shard), the file of a stage, or a model.
    pub path: PathBuf,
    /// The model that a layer package or a stage was cut from, to compare every tensor with; of a stage also its package.
    #[arg(long, value_name = "MODEL")]
    pub source: Option<PathBuf>,
    /// Load and run it too, if nothing is wrong with its bytes: whether its numbers are any.
    #[arg(long)]
    pub smoke: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// In the container.
    #[serde(flatten)]
    pub container: Container,
    /// When it was run, if it was asked for and nothing was wrong before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smoke: Option<Smoke>,
    /// It was asked for, and not run: what is not as it was recorded, or has no record, is not worth running.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub smoke_left_out: bool,
}

/// What was found, by kind.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Container {
    /// In a layer package.
    Package(verify_package::Report),
    /// In a grafted set, a stage, or a model.
    Set(verify_set::Report),
}

impl Container {
    fn code(&self) -> u8 {
        match self {
            Self::Package(report) => verify_package::code(report),
            Self::Set(report) => verify_set::code(report),
        }
    }
}

/// Verifies what the path leads to.
///
/// # Errors
/// [`PackError`]: what cannot be read at all. What is wrong with the container is in the report.
pub fn verify(flags: &VerifyFlags) -> Result<Report, PackError> {
    let VerifyFlags { path, source, smoke, json } = flags;
    let container = match (package::folder(path), source) {
        (Some(folder), source) => verify_package::verify(&folder, source.as_deref(), *json).map(Container::Package),
        (None, None) => verify_set::verify(path, *json).map(Container::Set),
        (None, Some(source)) => verify_set::stage(path, source, *json).map(Container::Set),
    }?;
    if *smoke && matches!(&container, Container::Set(report) if report.stage.is_some()) {
        let message = format!("{}: --smoke runs whole models, and this is one stage of one", path.display());
        return Err(PackError::Usage(message));
    }
    let whole = container.code() == 0;
    let run = match *smoke && whole {
        true => Some(smoke::smoke(&ModelFile::open(path, OpenOptions::default())?)?),
        false => None,
    };
    Ok(Report { container, smoke: run, smoke_left_out: *smoke && !whole })
}

/// The code of a report.
pub fn code(report: &Report) -> u8 {
    match &report.smoke {
        Some(smoke) if !smoke.faults.is_empty() => error::REFUSED,
        _ => report.container.code(),
    }
}

/// For people.
pub fn text(report: &Report) -> String {
    let text = match &report.container {
        Container::Package(report) => verify_package::text(report),
        Container::Set(report) => verify_set::text(report),
    };
    let left_out = if report.smoke_left_out { "not run, since the above comes first (--smoke)\n" } else { "" };
    text + &report.smoke.as_ref().map(Smoke::text).unwrap_or_default() + left_out
}
