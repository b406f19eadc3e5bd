//! Sections of the page about time: speed of the arms, what a pass costs, and how long requests wait.

use super::doc::Doc;
use super::markup::{Table, inline};
use super::page::{Scope, legend, overall, picture, plots, scopes, section};
use super::plot::{Axes, Label, Row, Series, bars, lines, ranges};

/// Speed by arm and workload.
pub fn speed(doc: &Doc) -> String {
    let one = |scope: &Scope<'_>| {
        let mut table = Table::new(&[
            "arm",
            "tokens a second, median",
            "least",
            "greatest",
            "times off",
            "all sessions, tokens a second",
            "tokens a pass",
            "requests",
            "prompt tokens",
            "answer tokens",
        ]);
        let mut rows = Vec::new();
        for (i, arm) in scope.arms.iter().enumerate() {
            let at = |name: &str| doc.figure(scope.at(i, name));
            table.row().named(doc.words(scope.at(i, "label")).as_ref());
            for name in [
                "decode_tok_s/median",
                "decode_tok_s/min",
                "decode_tok_s/max",
                "speedup",
                "total_tok_s/median",
                "shares/tokens_per_pass",
                "requests_n",
                "prompt_tokens",
                "speculation/completion_tokens",
            ] {
                table.figure(at(name));
            }
            let several = arm.decode_tok_s.rounds.len() > 1;
            rows.push(Row {
                label: scope.label(doc, i),
                figures: at("decode_tok_s/median").into_iter().collect(),
                spread: at("decode_tok_s/min").zip(at("decode_tok_s/max")).filter(|_| several),
                factor: at("speedup"),
                style: i,
                pale: arm.void.is_some() || arm.failed.is_some(),
            });
        }
        let plot = bars("Speed by arm", "tokens a second while decoding", &rows);
        picture(&scope.heading(), "", &plot, table)
    };
    let pictures: Vec<String> = scopes(doc).iter().map(one).collect();
    section(
        "Speed",
        "Tokens a second of a session after its first token: the median of the rounds, with a line from the slowest round to \
         the fastest; × is how many times the speed of plain decoding.",
        &plots(&pictures),
    )
}

/// Milliseconds of a pass by its rows.
pub fn cost(doc: &Doc) -> String {
    let mut pictures = Vec::new();
    if let Some(cost) = &doc.result.cost {
        let mut table = Table::new(&["rows", "ms"]);
        let mut points = Vec::new();
        for rows in cost.rows_ms.keys() {
            let figure = doc.figure(format!("/cost/rows_ms/{rows}"));
            table.row().head(&rows.to_string()).figure(figure.clone());
            points.extend(figure.map(|figure| (*rows as f64, figure)));
        }
        table.row().head("a step of the MTP chain").figure(doc.figure("/cost/draft_ms"));
        let axes = Axes { title: "Cost table", x: "rows of a pass", y: "milliseconds" };
        let plot = lines(&axes, &[Series { style: 1, points, joined: true }], true);
        let origin = Label::of(doc.words("/cost/origin"));
        pictures.push(picture("The cost table that was reckoned with", &legend(&[(1, origin)]), &plot, table));
    }
    let scope = overall(doc);
    let mut table = Table::new(&["arm", "rows", "passes", "mean ms", "p50 ms", "p95 ms", "p99 ms", "greatest ms"]);
    let (mut series, mut entries) = (Vec::new(), Vec::new());
    for (i, arm) in scope.arms.iter().enumerate().filter(|(_, arm)| !arm.pass_ms.is_empty()) {
        let mut points = Vec::new();
        for rows in arm.pass_ms.keys() {
            let at = |name: &str| doc.figure(scope.at(i, &format!("pass_ms/{rows}/{name}")));
            table.row().named(doc.words(scope.at(i, "label")).as_ref()).head(&rows.to_string());
            for name in ["n", "mean", "p50", "p95", "p99", "max"] {
                table.figure(at(name));
            }
            points.extend(at("p50").map(|figure| (*rows as f64, figure)));
        }
        entries.push((i, scope.label(doc, i)));
        series.push(Series { style: i, points, joined: true });
    }
    let axes = Axes { title: "Passes by rows", x: "rows of a pass", y: "milliseconds" };
    let plot = lines(&axes, &series, true);
    pictures.push(picture("Passes of the arms, half of them at most this long", &legend(&entries), &plot, table));
    section(
        "What verifying costs",
        "Milliseconds of one pass of the model by the rows in it: a row for the last token of every session and one for every \
         draft. The flatter the curve, the more a window of drafts may miss and still gain.",
        &plots(&pictures),
    )
}

/// Weights read by passes, under what the machine can read.
pub fn roofline(doc: &Doc) -> String {
    let Some(facts) = &doc.result.roofline else { return String::new() };
    let mut table = Table::new(&["what", "rows of a pass", "GB a second"]);
    let mut passes = Vec::new();
    for rows in facts.rows_gb_s.keys() {
        let figure = doc.figure(format!("/roofline/rows_gb_s/{rows}"));
        table.row().head("weights read by a pass").head(&rows.to_string()).figure(figure.clone());
        passes.extend(figure.map(|figure| (*rows as f64, figure)));
    }
    // A roof spans all widths, and more than one.
    let last = facts.rows_gb_s.keys().next_back().copied().unwrap_or(1).max(2) as f64;
    let roofs = [("plain read of memory", "memory_gb_s"), ("plain read of as many bytes", "weights_gb_s")];
    let (mut series, mut entries) = (Vec::new(), Vec::new());
    for (style, (name, field)) in [2, 3].into_iter().zip(roofs) {
        let figure = doc.figure(format!("/roofline/{field}"));
        table.row().head(name).head("any").figure(figure.clone());
        let points = figure.map(|figure| [(1.0, figure.clone()), (last, figure)]).into_iter().flatten().collect();
        entries.push((style, Label::Ours(name.to_owned())));
        series.push(Series { style, points, joined: true });
    }
    if !passes.is_empty() {
        entries.insert(0, (1, Label::Ours("weights read by a pass".to_owned())));
        series.push(Series { style: 1, points: passes, joined: true });
    }
    let bytes = doc.figure("/roofline/row_bytes").map(|figure| inline(&figure.mib())).unwrap_or_default();
    let how = format!("<p>A pass over one row reads {bytes} MiB of weights.</p>");
    let axes = Axes { title: "Roofline", x: "rows of a pass", y: "GB (a billion bytes) a second" };
    let picture = picture("Weights read a second", &legend(&entries), &lines(&axes, &series, true), table);
    section(
        "Roofline",
        "How fast passes read the model’s weights, under how fast as many workers read plainly: a large piece of memory, and \
         as many bytes as a pass reads, over and over. Near the roof a pass waits for memory, and more rows in it cost next \
         to nothing; where the curve has fallen, it computes. Caches and states that a pass reads beside weights are not \
         counted.",
        &(how + &plots(&[picture])),
    )
}

/// Waiting for the first token, and for each after it.
pub fn times(doc: &Doc) -> String {
    const QUANTILES: [&str; 3] = ["p50", "p95", "p99"];
    let kinds = [
        ("ttft_ms", "Time to the first token", "milliseconds from request to first token"),
        ("tpot_ms", "Time per token after the first", "milliseconds a token"),
        ("emission_gap_ms", "Gaps between emissions", "milliseconds from emission to emission"),
        ("total_ms", "Whole requests", "milliseconds from request to end"),
        ("lookup_us", "One look-up in the suffix index", "microseconds"),
    ];
    let one = |(kind, heading, unit): (&str, &str, &str)| {
        let mut rows = Vec::new();
        let mut table = Table::new(&["workload", "arm", "values", "mean", "p50", "p95", "p99", "greatest"]);
        for scope in scopes(doc) {
            for i in 0..scope.arms.len() {
                let at = |name: &str| doc.figure(scope.at(i, &format!("times/{kind}/{name}")));
                if at("n").is_none_or(|n| n.value == 0.0) {
                    continue;
                }
                match &scope.source {
                    Some(words) => table.row().named(Some(words)),
                    None => table.row().head("all"),
                };
                table.named(doc.words(scope.at(i, "label")).as_ref());
                for name in ["n", "mean", "p50", "p95", "p99", "max"] {
                    table.figure(at(name));
                }
            }
        }
        let scope = overall(doc);
        for (i, arm) in scope.arms.iter().enumerate() {
            let at = |name: &str| doc.figure(scope.at(i, &format!("times/{kind}/{name}")));
            if at("n").is_some_and(|n| n.value > 0.0) {
                rows.push(Row {
                    label: scope.label(doc, i),
                    figures: QUANTILES.into_iter().filter_map(at).collect(),
                    spread: None,
                    factor: None,
                    style: i,
                    pale: arm.void.is_some(),
                });
            }
        }
        picture(heading, "", &ranges(heading, unit, &rows), table)
    };
    section(
        "Waiting",
        "Distributions over all requests of all rounds: the full dot is what half of them stay within and is written beside \
         the arm; the hollow ones are what 95 and 99 of 100 stay within. Tokens committed at once are one emission.",
        &plots(&kinds.map(one)),
    )
}
