//! The page: what was measured, and a section for everything that was.
//!
//! It is one file that asks for nothing: styles are inside, pictures are SVG, there is no script but the result itself as
//! data, and its policy forbids the rest. Sections whose figures a result lacks are absent.

use std::fmt::Write as _;

use super::doc::{Doc, Words, key};
use super::markup::{Table, escape, inline, name, script_json};
use super::plot::{Label, Row, bars};
use super::{cells, drafting, timing};
use crate::bench::result::Arm;

/// What is told of what was replayed, by its path there.
pub(super) const TRACE: [&str; 9] = [
    "sessions_n",
    "left_out_n",
    "outputs_n",
    "prompt_tokens",
    "output_tokens",
    "prompts_cut_n",
    "prompt_tokens_cut",
    "outputs_cut_n",
    "output_tokens_cut",
];

/// Its policy: nothing may be fetched, run or sent. Styles are those inside.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Arms over one source, or over all.
pub struct Scope<'a> {
    /// The source; none: all of them.
    pub source: Option<Words>,
    /// Path of the list of arms.
    pub path: String,
    /// The arms.
    pub arms: &'a [Arm],
}

impl Scope<'_> {
    /// Path of something of an arm.
    pub fn at(&self, arm: usize, rest: &str) -> String {
        format!("{}/{arm}/{rest}", self.path)
    }

    /// The name of an arm.
    pub fn label(&self, doc: &Doc, arm: usize) -> Label {
        Label::of(doc.words(self.at(arm, "label")))
    }

    /// The heading of a figure over this scope.
    pub fn heading(&self) -> String {
        self.source.as_ref().map_or_else(|| "All workloads".to_owned(), name)
    }
}

/// The arms over all sources.
pub fn overall(doc: &Doc) -> Scope<'_> {
    Scope { source: None, path: "/arms".to_owned(), arms: &doc.result.arms }
}

/// The arms by source, and over all where that is something else.
pub fn scopes(doc: &Doc) -> Vec<Scope<'_>> {
    let workloads = doc.result.workloads.iter().enumerate().map(|(i, workload)| Scope {
        source: doc.words(format!("/workloads/{i}/source")),
        path: format!("/workloads/{i}/arms"),
        arms: &workload.arms,
    });
    let mut out: Vec<Scope<'_>> = workloads.collect();
    if out.len() != 1 {
        out.insert(0, overall(doc));
    }
    out
}

/// A section with a heading and a sentence; nothing without a body.
pub fn section(heading: &str, sentence: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    format!("<section><h2>{}</h2><p class=\"soft\">{}</p>{body}</section>\n", escape(heading), escape(sentence))
}

/// A picture under a heading, which is markup, with its figures as a table; nothing without a picture.
pub fn picture(heading: &str, legend: &str, plot: &str, table: Table) -> String {
    if plot.is_empty() {
        return String::new();
    }
    let table = table.end();
    format!(
        "<figure><h3>{heading}</h3>{legend}{plot}<details><summary>The figures as a table</summary>{table}</details></figure>"
    )
}

/// Pictures side by side.
pub fn plots(pictures: &[String]) -> String {
    let all = pictures.concat();
    if all.is_empty() { all } else { format!("<div class=\"plots\">{all}</div>") }
}

/// What the colours of a picture stand for.
pub fn legend(entries: &[(usize, Label)]) -> String {
    let mut out = "<ul class=\"legend\">".to_owned();
    for (style, label) in entries {
        let style = style % 8;
        let text = match label {
            Label::Ours(text) => escape(text),
            Label::Theirs(words) => name(words),
        };
        _ = write!(
            out,
            "<li><svg viewBox=\"0 0 22 10\" aria-hidden=\"true\"><path class=\"line l{style}\" d=\"M0 5H22\"/>\
             <circle class=\"mark s{style}\" cx=\"11\" cy=\"5\" r=\"3\"/></svg>{text}</li>"
        );
    }
    out + "</ul>"
}

/// The whole page.
pub fn page(doc: &Doc) -> String {
    let title = format!("Benchmark of {}", doc.result.model.name);
    let sections = [
        head(doc),
        timing::speed(doc),
        cells::sweep(doc),
        drafting::acceptance(doc),
        drafting::lengths(doc),
        timing::cost(doc),
        timing::roofline(doc),
        timing::times(doc),
        memory(doc),
        replayed(doc),
        settings(doc),
        drafting::counters(doc),
    ];
    format!(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <title>{}</title>\n<style>\n{}</style></head>\n<body>\n{}\
         <script type=\"application/json\" id=\"result\">{}</script>\n</body></html>\n",
        escape(&title),
        include_str!("style.css"),
        sections.concat(),
        script_json(&doc.text)
    )
}

fn head(doc: &Doc) -> String {
    let shown = |path: &str| doc.words(path).filter(|words| !words.text.is_empty()).map(|words| name(&words));
    let number = |path: &str| doc.figure(path).map(|figure| inline(&figure));
    let model = shown("/model/name").unwrap_or_else(|| "a model".to_owned());
    let mut out = format!("<header><h1>Benchmark of {model}</h1>");
    let line = |out: &mut String, parts: Vec<Option<String>>| {
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if !parts.is_empty() {
            _ = write!(out, "<p class=\"soft\">{}</p>", parts.join(" · "));
        }
    };
    let told = |what: &str, found: Option<String>| found.map(|found| format!("{what} {found}"));
    line(
        &mut out,
        vec![
            told("architecture", shown("/model/arch")),
            told("made for a context of", number("/model/context_train_tokens")).map(|text| text + " tokens"),
            told("tensors", shown("/model/tensor_tree_sha256")),
        ],
    );
    line(
        &mut out,
        vec![
            told("on", shown("/host/cpu")),
            told("cores", number("/host/cores")),
            told("instructions", shown("/host/isa")),
            told("version", shown("/host/version")),
        ],
    );
    line(
        &mut out,
        vec![
            told("mode", shown("/mode")),
            told("sessions at once", number("/run/concurrency")),
            told("measured rounds", number("/run/repeats")),
            told("rounds before them", number("/run/warmup")),
            told("context", number("/run/context_tokens")).map(|text| text + " tokens"),
            told("threads", number("/run/threads")),
            told("seed", number("/run/seed")),
        ],
    );
    if doc.result.run.simulated {
        out.push_str(
            "<p class=\"warn\">Times are simulated: the recorded answers were taken for the model’s, and a pass takes what \
             the cost table says. What was drafted and accepted is real, and so is the time of the work around passes, \
             which a busy machine makes longer.</p>",
        );
    }
    out.push_str(&winner(doc));
    for scope in scopes(doc) {
        for (i, arm) in scope.arms.iter().enumerate() {
            out.push_str(&warning(doc, &scope, i, arm));
        }
    }
    out + "</header>\n"
}

/// The fastest arm that counts, in a sentence.
fn winner(doc: &Doc) -> String {
    let counts = |arm: &&(usize, &Arm)| arm.1.void.is_none() && arm.1.failed.is_none();
    let arms: Vec<(usize, &Arm)> = doc.result.arms.iter().enumerate().collect();
    let best = arms.iter().filter(counts).max_by(|a, b| a.1.decode_tok_s.median.total_cmp(&b.1.decode_tok_s.median));
    let Some((i, _)) = best else { return String::new() };
    let words = doc.words(format!("/arms/{i}/label")).map(|words| name(&words)).unwrap_or_default();
    let Some(speed) = doc.figure(format!("/arms/{i}/decode_tok_s/median")) else { return String::new() };
    let factor = doc.figure(format!("/arms/{i}/speedup"));
    let factor = factor.map(|factor| format!(", {} times the speed of plain decoding", inline(&factor)));
    format!("<p>Fastest: <b>{words}</b> with {} tokens a second{}.</p>", inline(&speed), factor.unwrap_or_default())
}

/// Why an arm's figures do not count.
fn warning(doc: &Doc, scope: &Scope<'_>, i: usize, arm: &Arm) -> String {
    let words = |rest: &str| doc.words(scope.at(i, rest)).map(|words| name(&words)).unwrap_or_default();
    let number = |rest: &str| doc.figure(scope.at(i, rest)).map(|figure| inline(&figure)).unwrap_or_default();
    let who = format!("{} ({})", words("label"), scope.heading());
    if arm.failed.is_some() {
        return format!("<p class=\"warn\">{who} failed: {}</p>", words("failed"));
    }
    if arm.void.is_none() {
        return String::new();
    }
    format!(
        "<p class=\"warn\">{who} is void, its output is not that of plain decoding: {}, turn {}, position {} is {} \
         instead of {}. It is drawn pale.</p>",
        words("void/session"),
        number("void/turn"),
        number("void/position"),
        words("void/found"),
        words("void/expected"),
    )
}

fn memory(doc: &Doc) -> String {
    let mut entries: Vec<(Label, String)> = Vec::new();
    let memory = &doc.result.memory;
    if memory.peak_rss_bytes > 0 {
        entries.push((Label::Ours("most that was resident at once".to_owned()), "/memory/peak_rss_bytes".to_owned()));
    }
    for room in memory.executor_bytes.keys() {
        entries.push((Label::Ours(room.clone()), format!("/memory/executor_bytes/{}", key(room))));
    }
    if memory.suffix_index_bytes > 0 {
        entries.push((Label::Ours("suffix index".to_owned()), "/memory/suffix_index_bytes".to_owned()));
    }
    let mut table = Table::new(&["what", "MiB", "bytes"]);
    let mut rows = Vec::new();
    for (label, path) in entries {
        let Label::Ours(text) = &label else { continue };
        table.row().head(text).figure(doc.figure(&*path).map(|figure| figure.mib())).figure(doc.figure(&*path));
        let Some(figure) = doc.figure(&*path).filter(|figure| figure.value > 0.0) else { continue };
        rows.push(Row { label, figures: vec![figure.mib()], spread: None, factor: None, style: 1, pale: false });
    }
    let plot = bars("Memory by what it is for", "MiB", &rows);
    section(
        "Memory",
        "What the process held at its fullest, mapped files included, and what was planned for the model’s executor, room by \
         room, and for the index of repeated text.",
        &plots(&[picture("Memory of the process that ran the model", "", &plot, table)]),
    )
}

fn replayed(doc: &Doc) -> String {
    let mut table = Table::new(&[
        "workload",
        "sessions",
        "left out",
        "answers",
        "prompt tokens",
        "answer tokens",
        "prompts cut",
        "prompt tokens cut",
        "answers cut",
        "answer tokens cut",
    ]);
    for i in 0..doc.result.traces.len() {
        let at = |name: &str| doc.figure(format!("/traces/{i}/{name}"));
        table.row().named(doc.words(format!("/traces/{i}/source")).as_ref());
        for name in TRACE {
            table.figure(at(name));
        }
    }
    section(
        "What was replayed",
        "Recorded sessions by workload. A prompt that the context does not hold loses its beginning, an answer its end.",
        &table.end(),
    )
}

fn settings(doc: &Doc) -> String {
    let scope = overall(doc);
    let mut table = Table::new(&[
        "arm",
        "strategy",
        "MTP drafts",
        "shortest match",
        "longest match",
        "longest tail",
        "policy",
        "first width",
        "least width",
        "greatest width",
    ]);
    for i in 0..scope.arms.len() {
        let number = |name: &str| doc.figure(scope.at(i, &format!("settings/{name}")));
        table.row().named(doc.words(scope.at(i, "label")).as_ref()).words(doc.words(scope.at(i, "strategy")));
        for name in ["mtp_tokens", "suffix_min", "suffix_max", "suffix_tokens"] {
            table.figure(number(name));
        }
        table.words(doc.words(scope.at(i, "settings/window/policy")));
        for name in ["window/initial", "window/min", "window/max"] {
            table.figure(number(name));
        }
    }
    section(
        "How the arms draft",
        "Settings of every arm, in tokens: what its proposers may draft, and how many drafts are verified at once.",
        &table.end(),
    )
}
