//! The figures as CSV (RFC 4180): a file for each kind of table. Columns have the names of the result's fields, which carry
//! their units; numbers are those of the result to the last digit, and what is absent there is an empty field.

use super::doc::{Doc, key};
use super::page::{Scope, TRACE, overall, scopes};
use crate::bench::result::{Arm, Bins};

/// What is told of an arm, by its path in the arm.
const ARM: [&str; 46] = [
    "strategy",
    "settings/mtp_tokens",
    "settings/suffix_min",
    "settings/suffix_max",
    "settings/suffix_tokens",
    "settings/window/policy",
    "settings/window/initial",
    "settings/window/min",
    "settings/window/max",
    "decode_tok_s/median",
    "decode_tok_s/min",
    "decode_tok_s/max",
    "speedup",
    "total_tok_s/median",
    "output_sha256",
    "failed",
    "void/session",
    "requests_n",
    "prompt_tokens",
    "speculation/completion_tokens",
    "speculation/steps_n",
    "speculation/windows_n",
    "speculation/proposed_n",
    "speculation/trimmed_n",
    "speculation/drafted_n",
    "speculation/accepted_n",
    "speculation/rejected_n",
    "speculation/unreached_n",
    "speculation/discarded_n",
    "shares/acceptance_rate",
    "shares/mtp_tested_rate",
    "shares/tail_rate",
    "shares/suffix_hit_rate",
    "shares/mean_accepted",
    "shares/accept_length",
    "shares/tokens_per_pass",
    "times/ttft_ms/p50",
    "times/ttft_ms/p95",
    "times/ttft_ms/p99",
    "times/tpot_ms/p50",
    "times/tpot_ms/p95",
    "times/tpot_ms/p99",
    "times/emission_gap_ms/p50",
    "times/emission_gap_ms/p99",
    "times/lookup_us/mean",
    "times/index_ns_per_token",
];

/// What is told of a cell of a sweep, by its path in the cell.
const CELL: [&str; 17] = [
    "label",
    "strategy",
    "settings/mtp_tokens",
    "settings/suffix_min",
    "settings/suffix_max",
    "settings/suffix_tokens",
    "settings/window/policy",
    "settings/window/initial",
    "settings/window/min",
    "settings/window/max",
    "decode_tok_s/median",
    "decode_tok_s/min",
    "decode_tok_s/max",
    "off_tok_s",
    "speedup",
    "acceptance_rate",
    "kept",
];

const QUANTILES: [&str; 6] = ["n", "mean", "p50", "p95", "p99", "max"];

/// The files: name and text of each that has a row.
pub fn files(doc: &Doc) -> Vec<(&'static str, String)> {
    let all = [
        ("arms.csv", arms(doc)),
        ("positions.csv", positions(doc)),
        ("lengths.csv", lengths(doc)),
        ("passes.csv", passes(doc)),
        ("cost.csv", cost(doc)),
        ("roofline.csv", roofline(doc)),
        ("memory.csv", memory(doc)),
        ("traces.csv", traces(doc)),
        ("cells.csv", cells(doc)),
    ];
    all.into_iter().filter(|(_, sheet)| sheet.rows > 0).map(|(name, sheet)| (name, sheet.text)).collect()
}

/// A table on its way.
struct Sheet {
    text: String,
    rows: usize,
}

impl Sheet {
    fn new<'a>(columns: impl IntoIterator<Item = &'a str>) -> Self {
        let mut sheet = Self { text: String::new(), rows: 0 };
        sheet.row(columns.into_iter().map(|name| name.replace('/', ".")));
        sheet.rows = 0;
        sheet
    }

    fn row(&mut self, fields: impl IntoIterator<Item = String>) {
        let fields: Vec<String> = fields.into_iter().map(|text| field(&text)).collect();
        self.text.push_str(&fields.join(","));
        self.text.push_str("\r\n");
        self.rows += 1;
    }
}

/// A field, quoted where it has to be.
fn field(text: &str) -> String {
    match text.contains([',', '"', '\r', '\n']) || text.starts_with(' ') || text.ends_with(' ') {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// Every arm of every scope, with the two names that its rows begin with.
fn each_arm<'a>(doc: &'a Doc, mut take: impl FnMut([String; 2], &Scope<'a>, usize, &'a Arm)) {
    let mut all = scopes(doc);
    if all.len() == 1 {
        all.insert(0, overall(doc));
    }
    for scope in all {
        let source = scope.source.as_ref().map_or("all", |words| &words.text).to_owned();
        for (i, arm) in scope.arms.iter().enumerate() {
            take([source.clone(), arm.label.clone()], &scope, i, arm);
        }
    }
}

fn arms(doc: &Doc) -> Sheet {
    let mut sheet = Sheet::new(["workload", "arm"].into_iter().chain(ARM));
    each_arm(doc, |names, scope, i, _| {
        let fields = ARM.iter().map(|name| doc.plain(&scope.at(i, name)).unwrap_or_default());
        sheet.row(names.into_iter().chain(fields));
    });
    sheet
}

fn positions(doc: &Doc) -> Sheet {
    let mut sheet = Sheet::new(["workload", "arm", "proposer", "position", "drafted", "tested", "accepted"]);
    each_arm(doc, |names, scope, i, arm| {
        let whole = ("all".to_owned(), "speculation".to_owned(), arm.speculation.per_position.len());
        let parts =
            arm.lengths.iter().map(|(name, l)| (name.clone(), format!("lengths/{}", key(name)), l.per_position.len()));
        for (who, path, len) in [whole].into_iter().chain(parts) {
            for position in 0..len {
                let at = |name: &str| doc.plain(&scope.at(i, &format!("{path}/per_position/{position}/{name}")));
                let figures = ["drafted", "tested", "accepted"].map(|name| at(name).unwrap_or_default());
                let [source, label] = names.clone();
                sheet.row([source, label, who.clone(), (position + 1).to_string()].into_iter().chain(figures));
            }
        }
    });
    sheet
}

fn lengths(doc: &Doc) -> Sheet {
    let mut sheet = Sheet::new(["workload", "arm", "proposer", "of", "length", "count"]);
    let bins: Vec<&str> = Bins::default().in_order().map(|(name, _)| name).collect();
    each_arm(doc, |names, scope, i, arm| {
        let kinds = ["candidate", "tested", "accepted"];
        let parts = arm
            .lengths
            .keys()
            .flat_map(|name| kinds.map(|kind| (name.clone(), kind, format!("lengths/{}/{kind}_hist", key(name)))));
        let committed = ("".to_owned(), "committed at once", "emission_tokens_hist".to_owned());
        for (who, of, path) in parts.chain([committed]) {
            for bin in &bins {
                let Some(count) = doc.plain(&scope.at(i, &format!("{path}/{}", key(bin)))) else { continue };
                let [source, label] = names.clone();
                sheet.row([source, label, who.clone(), of.to_owned(), (*bin).to_owned(), count]);
            }
        }
    });
    sheet
}

fn passes(doc: &Doc) -> Sheet {
    let columns = ["n", "mean_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms"];
    let mut sheet = Sheet::new(["workload", "arm", "rows"].into_iter().chain(columns));
    each_arm(doc, |names, scope, i, arm| {
        for rows in arm.pass_ms.keys() {
            let at = |name: &str| doc.plain(&scope.at(i, &format!("pass_ms/{rows}/{name}"))).unwrap_or_default();
            sheet.row(names.clone().into_iter().chain([rows.to_string()]).chain(QUANTILES.map(at)));
        }
    });
    sheet
}

fn cost(doc: &Doc) -> Sheet {
    let mut sheet = Sheet::new(["rows", "ms"]);
    for rows in doc.result.cost.iter().flat_map(|cost| cost.rows_ms.keys()) {
        sheet.row([rows.to_string(), doc.plain(&format!("/cost/rows_ms/{rows}")).unwrap_or_default()]);
    }
    sheet
}

fn roofline(doc: &Doc) -> Sheet {
    let mut sheet = Sheet::new(["what", "rows", "gb_s"]);
    let Some(facts) = &doc.result.roofline else { return sheet };
    let rows = facts.rows_gb_s.keys();
    let passes = rows.map(|rows| ("pass", rows.to_string(), format!("/roofline/rows_gb_s/{rows}")));
    let roofs = ["memory", "weights"].map(|what| (what, String::new(), format!("/roofline/{what}_gb_s")));
    for (what, rows, path) in passes.chain(roofs) {
        sheet.row([what.to_owned(), rows, doc.plain(&path).unwrap_or_default()]);
    }
    sheet
}

fn memory(doc: &Doc) -> Sheet {
    let mut sheet = Sheet::new(["what", "bytes"]);
    let rooms = doc.result.memory.executor_bytes.keys();
    let rooms = rooms.map(|room| (room.clone(), format!("/memory/executor_bytes/{}", key(room))));
    let whole = ["peak_rss_bytes", "suffix_index_bytes"].map(|name| (name.to_owned(), format!("/memory/{name}")));
    for (what, path) in whole.into_iter().chain(rooms) {
        if let Some(bytes) = doc.plain(&path) {
            sheet.row([what, bytes]);
        }
    }
    sheet
}

fn traces(doc: &Doc) -> Sheet {
    let mut sheet = Sheet::new(["workload"].into_iter().chain(TRACE));
    for (i, facts) in doc.result.traces.iter().enumerate() {
        let figures = TRACE.map(|name| doc.plain(&format!("/traces/{i}/{name}")).unwrap_or_default());
        sheet.row([facts.source.clone()].into_iter().chain(figures));
    }
    sheet
}

fn cells(doc: &Doc) -> Sheet {
    let mut sheet = Sheet::new(["rung", "sessions_n"].into_iter().chain(CELL));
    let rungs = doc.result.sweep.iter().flat_map(|sweep| &sweep.rungs).enumerate();
    for (r, rung) in rungs {
        for c in 0..rung.cells.len() {
            let fields = CELL.map(|name| doc.plain(&format!("/sweep/rungs/{r}/cells/{c}/{name}")).unwrap_or_default());
            sheet.row([(r + 1).to_string(), rung.sessions_n.to_string()].into_iter().chain(fields));
        }
    }
    sheet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_have_to_be() {
        for (text, quoted) in
            [("a", "a"), ("a,b", "\"a,b\""), ("say \"x\"", "\"say \"\"x\"\"\""), ("a\nb", "\"a\nb\""), (" a", "\" a\"")]
        {
            assert_eq!(field(text), quoted);
        }
    }
}
