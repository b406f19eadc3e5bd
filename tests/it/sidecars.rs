//! A model in one file, and the same as a trunk and a sidecar: the same tokens, and the same counts of everything that was
//! drafted for them. Every family with an MTP block, cut here as converters write the two files.

use engine::api::{Report, Strategy, SuffixCounts};
use engine::limits::{PREFILL_ROWS_MIN, WINDOW_MAX};
use engine::model::MtpStatus;
use engine_bin::embed::Outcome;
use engine_io::ModelFile;
use engine_tests::drive::{Cell, Subject, run};
use engine_tests::fixtures::fixture;

use crate::forward::edit::Edit;
use crate::forward::open;
use crate::forward::qwen3next::qwen3next;
use crate::identity::covering;

const TOKENS: u32 = 40;

fn subject(name: &'static str, file: ModelFile, draft: Option<&ModelFile>) -> Subject {
    let subject = Subject::code(name, file, draft, TOKENS).with_long_prompt();
    let expected = if draft.is_some() { MtpStatus::Sidecar } else { MtpStatus::Own };
    assert_eq!(subject.opened.model.mtp, expected, "{name}");
    subject
}

/// What is counted, without what is timed.
fn counts(outcome: &Outcome) -> Report {
    let suffix_lookups = SuffixCounts { lookup_ns: 0, lookup_ns_max: 0, extend_ns: 0, ..outcome.report.suffix_lookups };
    Report {
        suffix_lookups,
        mtp_draft_ns: 0,
        stall_ns: 0,
        queue_ns: 0,
        prompt_ns: 0,
        predicted_ns: 0,
        ttft_ns: 0,
        total_ns: 0,
        ..outcome.report.clone()
    }
}

/// In every cell of the covering set, by fixed windows: tokens and text; and by request all of [`Report`]: drafts of each
/// proposer and what became of them, accepted lengths and positions, target passes (`steps`), hence tokens a pass.
fn check(merged: &Subject, parts: &Subject) {
    let cells = covering(&[Strategy::Mtp, Strategy::MtpSuffix]);
    let (mut mtp, mut suffix) = (0, 0);
    for cell in &cells {
        // Else the width of a window depends on who else runs just then.
        assert!(limits_share_nothing(cell), "{cell:?}");
        let (one, two) = (run(merged, cell), run(parts, cell));
        for (i, (one, two)) in one.iter().zip(&two).enumerate() {
            let what = format!("{} and {}, prompt {i} under {cell:?}", merged.name, parts.name);
            assert_eq!(one.tokens, two.tokens, "{what}: tokens");
            assert_eq!((&one.text, &one.finish), (&two.text, &two.finish), "{what}");
            assert_eq!(counts(one), counts(two), "{what}: counts");
            assert_eq!(one.tokens.len() as u64, one.report.completion_tokens, "{what}: tokens of all passes");
            mtp += one.report.mtp.accepted;
            suffix += one.report.suffix.drafted;
        }
    }
    eprintln!(
        "{}: {} cells, {mtp} drafts of the block accepted, {suffix} of the index verified",
        parts.name,
        cells.len()
    );
    // Drafts of a block with random weights end every match of the index: there it never has a tail to add.
    let both = suffix > 0 || merged.name == "qwen4exp";
    assert!(mtp > 0 && both, "{}: so little was drafted that little was compared", merged.name);
}

fn limits_share_nothing(cell: &Cell) -> bool {
    cell.parallel * (1 + WINDOW_MAX) + PREFILL_ROWS_MIN <= cell.limits().step_rows
}

/// One file, and its two halves.
fn check_cut(name: &'static str, merged: &Edit) {
    let sidecar = merged.clone().sidecar().file_as("mtp-cut.gguf");
    check(&subject(name, merged.file(), None), &subject(name, merged.clone().trunk().file(), Some(&sidecar)));
}

fn check_fixture(name: &'static str, path: &str) {
    if let Some(merged) = Edit::of(path) {
        check_cut(name, &merged);
    }
}

#[test]
fn qwen35_counts_the_same_in_two_files() {
    check_fixture("qwen35", "qwen35-tiny/qwen35-tiny-Q8_0.gguf");
}

#[test]
fn qwen35moe_counts_the_same_in_two_files() {
    check_fixture("qwen35moe", "qwen35moe-tiny/qwen35moe-tiny-Q8_0.gguf");
}

#[test]
fn qwen3next_counts_the_same_in_two_files() {
    if let Some(merged) = qwen3next() {
        check_cut("qwen3next", &merged);
    }
}

#[test]
fn nemotron_h_moe_counts_the_same_in_two_files() {
    check_fixture("nemotron_h_moe", "nemotronh-tiny/nemotronh-tiny-Q8_0.gguf");
}

#[test]
fn qwen4exp_counts_the_same_in_two_files() {
    check_fixture("qwen4exp", "qwen4exp-tiny/qwen4exp-tiny-BF16.gguf");
}

/// The files that a converter wrote, one trunk of them in three shards.
#[test]
fn converted_files_count_as_the_merged_one() {
    let sets = [
        (
            "qwen35",
            "qwen35-tiny/qwen35-tiny-Q8_0",
            "qwen35-tiny/qwen35-tiny-nomtp-Q8_0-00002-of-00003",
            "qwen35-tiny/mtp-qwen35-tiny-Q8_0",
        ),
        (
            "nemotron_h_moe",
            "nemotronh-tiny/nemotronh-tiny-Q8_0",
            "nemotronh-tiny/nemotronh-tiny-nomtp-Q8_0",
            "nemotronh-tiny/mtp-nemotronh-tiny-Q8_0",
        ),
    ];
    for (name, merged, trunk, sidecar) in sets {
        let [merged, trunk, sidecar] = [merged, trunk, sidecar].map(|path| fixture(&format!("{path}.gguf")));
        let (Some(merged), Some(trunk), Some(sidecar)) = (merged, trunk, sidecar) else { continue };
        let parts = subject(name, open(&trunk), Some(&open(&sidecar)));
        check(&subject(name, open(&merged), None), &parts);
    }
}

/// What is cut here is what a converter writes: the same keys, the same tensors.
#[test]
fn cuts_are_as_converters_write_them() {
    let sets = [
        (
            "qwen35-tiny/qwen35-tiny-Q8_0",
            "qwen35-tiny/qwen35-tiny-nomtp-Q8_0-00001-of-00003",
            "qwen35-tiny/mtp-qwen35-tiny-Q8_0",
        ),
        (
            "nemotronh-tiny/nemotronh-tiny-Q8_0",
            "nemotronh-tiny/nemotronh-tiny-nomtp-Q8_0",
            "nemotronh-tiny/mtp-nemotronh-tiny-Q8_0",
        ),
    ];
    for (merged, trunk, sidecar) in sets {
        let [merged, trunk, sidecar] = [merged, trunk, sidecar].map(|path| Edit::of(&format!("{path}.gguf")));
        let Some(merged) = merged else { continue };
        for (cut, written) in [(merged.clone().trunk(), trunk), (merged.sidecar(), sidecar)] {
            let Some(written) = written else { continue };
            // Of a name and of sizes that a converter works out, and of shards, models know nothing.
            let keys = |edit: &Edit| -> Vec<String> {
                let keys = edit.meta.iter().filter(|(k, _)| !k.starts_with("split.") && *k != "general.size_label");
                let mut keys: Vec<String> = keys.map(|(k, v)| format!("{k} = {v:?}")).collect();
                keys.sort();
                keys
            };
            assert_eq!(keys(&cut), keys(&written));
            let tensors = |edit: &Edit| {
                let mut all: Vec<_> =
                    edit.tensors.iter().map(|t| (t.name.clone(), t.dims.clone(), t.kind, t.data.clone())).collect();
                all.sort_by(|a, b| a.0.cmp(&b.0));
                all
            };
            assert!(tensors(&cut) == tensors(&written), "tensors differ");
        }
    }
}
