//! `engine-pack`: looks into model files and makes others of them. Exit codes: 0 done, 1 failed, 2 usage, 3 refused
//! input.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use engine_bin::flags::long_names;
use engine_bin::hub::{self, Wanted};
use engine_bin::pack::convert_head::{self, ConvertHeadFlags};
use engine_bin::pack::doctor::{self, DoctorFlags};
use engine_bin::pack::fetch::{self, FetchFlags};
use engine_bin::pack::graft::{self, GraftFlags};
use engine_bin::pack::inspect::{self, InspectFlags};
use engine_bin::pack::materialize::{self, MaterializeFlags};
use engine_bin::pack::package::{self, PackageFlags};
use engine_bin::pack::preflight::{self, PreflightFlags};
use engine_bin::pack::quantize_head::{self, QuantizeHeadFlags};
use engine_bin::pack::verify::{self, VerifyFlags};
use engine_bin::pack::{self, PackError, error};
use engine_bin::report::{self, chain};

#[derive(Parser)]
#[command(name = "engine-pack", version, about = "Fetches model files, looks into them and makes others of them.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// What a model file holds and what memory it needs; no weight is read.
    Inspect(InspectFlags),
    /// The MTP head of a checkpoint (safetensors) as a GGUF file of its own.
    ConvertHead(ConvertHeadFlags),
    /// An MTP head in a smaller type; whatever else is in the file stays as it is.
    QuantizeHead(QuantizeHeadFlags),
    /// Whether a model or a head would load here, and what is wrong with it; no weight is read.
    Doctor(DoctorFlags),
    /// Puts a published MTP head behind a model that was published without one.
    Graft(GraftFlags),
    /// Cuts a model into a layer package, byte for byte, with the strategies that it may draft with.
    Package(PackageFlags),
    /// Whether a layer package can be served in so many stages, and what each of them takes.
    Preflight(PreflightFlags),
    /// Writes the file that one stage of a layer package loads.
    Materialize(MaterializeFlags),
    /// Compares what lies on the disk with what was recorded when it was made.
    Verify(VerifyFlags),
    /// Brings a model from a hub into the cache that the hub's own tools use, whole and checked.
    ///
    /// Read from the environment: HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE,
    /// HF_HUB_DOWNLOAD_TIMEOUT (seconds of silence).
    #[command(verbatim_doc_comment)]
    Fetch(FetchFlags),
}

fn main() -> ExitCode {
    let mut verb = match Cli::try_parse_from(long_names(std::env::args_os())) {
        Ok(cli) => cli.verb,
        Err(error) => return report::usage(&error),
    };
    if let Err(error) = engine_io::mmap::install_fault_handler() {
        report::error(chain(&error));
        return ExitCode::from(error::FAILED);
    }
    if let Err(error) = report::outlive_size_limits() {
        report::error(format!("cannot watch for signals: {error}"));
        return ExitCode::from(error::FAILED);
    }
    if let Err(error) = find(&mut verb) {
        report::error(chain(&error));
        return ExitCode::from(error.code());
    }
    match verb {
        Verb::Inspect(flags) => pack::end(inspect::inspect(&flags), flags.json, inspect::text),
        Verb::ConvertHead(flags) => pack::end(convert_head::run(&flags), flags.json, convert_head::text),
        Verb::QuantizeHead(flags) => pack::end(quantize_head::run(&flags), flags.json, quantize_head::text),
        Verb::Doctor(flags) => pack::end_with(Ok(doctor::doctor(&flags)), flags.json, doctor::text, doctor::code),
        Verb::Graft(flags) => pack::end(graft::graft(&flags), flags.json, graft::text),
        Verb::Package(flags) => pack::end(package::package(&flags), flags.json, package::text),
        Verb::Preflight(flags) => {
            pack::end_with(preflight::preflight(&flags), flags.json, preflight::text, preflight::code)
        }
        Verb::Materialize(flags) => pack::end(materialize::materialize(&flags), flags.json, materialize::text),
        Verb::Verify(flags) => pack::end_with(verify::verify(&flags), flags.json, verify::text, verify::code),
        Verb::Fetch(flags) => pack::end(fetch::fetch(&flags), flags.json, fetch::text),
    }
}

/// Puts paths of what is on a hub in the place of its names, whatever flag has them. What is read comes from here alone.
fn find(verb: &mut Verb) -> Result<(), PackError> {
    use Wanted::{Model, Sidecar};
    let names: [Option<(&mut PathBuf, Wanted)>; 2] = match verb {
        Verb::Inspect(flags) => {
            let draft = flags.sidecar.spec_draft_model.as_mut();
            [flags.model.as_mut().map(|path| (path, Model)), draft.map(|path| (path, Sidecar))]
        }
        Verb::ConvertHead(flags) => {
            if let Some(name) = hub::name_in(&flags.source) {
                return Err(PackError::Usage(format!(
                    "--source {name}: a checkpoint is not fetched by name; download its files, and give their directory"
                )));
            }
            [Some((&mut flags.target, Model)), None]
        }
        Verb::QuantizeHead(flags) => [Some((&mut flags.head, Sidecar)), None],
        Verb::Doctor(flags) => [Some((&mut flags.model, Model)), flags.head.as_mut().map(|path| (path, Sidecar))],
        Verb::Graft(flags) => [Some((&mut flags.target, Model)), Some((&mut flags.head, Sidecar))],
        Verb::Package(flags) => [Some((&mut flags.model, Model)), None],
        Verb::Preflight(flags) => [Some((&mut flags.package, Model)), None],
        Verb::Materialize(flags) => [Some((&mut flags.package, Model)), None],
        Verb::Verify(flags) => [Some((&mut flags.path, Model)), flags.source.as_mut().map(|path| (path, Model))],
        // Its argument is the name.
        Verb::Fetch(_) => [None, None],
    };
    for (path, wanted) in names.into_iter().flatten() {
        *path = hub::local(path, wanted, &|line| report::note(line))?;
    }
    Ok(())
}
