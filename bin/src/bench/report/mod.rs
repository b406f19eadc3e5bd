//! `engine-bench report`: a result of a benchmark -> a page for people, and tables as CSV.
//!
//! ```text
//! result.json ─► doc: text, values by path ─► page: sections (timing, drafting) ─► markup, plot ─► one HTML file
//!                                         └─► csv: a file for each table
//! ```

mod cells;
pub mod csv;
pub mod doc;
mod drafting;
pub mod markup;
pub mod page;
pub mod plot;
mod timing;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::whole::{self, WriteError};
use doc::{Doc, NoResult};

/// `engine-bench report`.
#[derive(Clone, Debug, Args)]
pub struct ReportFlags {
    /// What engine-bench replay or sweep wrote.
    #[arg(value_name = "RESULT.json")]
    pub result: PathBuf,
    /// Write the page: one file with everything in it.
    #[arg(long, value_name = "OUT.html", required_unless_present = "csv")]
    pub html: Option<PathBuf>,
    /// Write the tables to files of this folder.
    #[arg(long, value_name = "DIR")]
    pub csv: Option<PathBuf>,
    /// Print what was written as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The result.
    #[error(transparent)]
    NoResult(#[from] NoResult),
    /// An output.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl ReportError {
    /// Exit code of the process.
    pub fn code(&self) -> u8 {
        match self {
            Self::NoResult(_) => 3,
            Self::Write(_) => 1,
        }
    }
}

/// What was written.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Written {
    /// The page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub html: Option<PathBuf>,
    /// The tables.
    pub csv: Vec<PathBuf>,
}

/// Writes what the flags ask for. What is there already is replaced.
///
/// # Errors
/// [`ReportError`].
pub fn run(flags: &ReportFlags) -> Result<Written, ReportError> {
    let doc = Doc::read(&flags.result)?;
    let mut written = Written::default();
    if let Some(path) = &flags.html {
        whole::write(path, page::page(&doc).as_bytes())?;
        written.html = Some(path.clone());
    }
    if let Some(dir) = &flags.csv {
        for (name, text) in csv::files(&doc) {
            let path = Path::new(dir).join(name);
            whole::write(&path, text.as_bytes())?;
            written.csv.push(path);
        }
    }
    Ok(written)
}
