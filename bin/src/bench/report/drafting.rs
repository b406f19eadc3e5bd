//! Sections of the page about drafts: how many were accepted, where in the window, and how long they were.

use std::collections::BTreeSet;

use super::doc::{Doc, Figure, key};
use super::markup::{Table, escape, name};
use super::page::{Scope, legend, overall, picture, plots, scopes, section};
use super::plot::{Axes, Label, Series, columns, lines};
use crate::bench::result::Bins;

/// A proposer in words.
fn proposer(name: &str) -> String {
    match name {
        "mtp" => "MTP block".to_owned(),
        "suffix" => "suffix index".to_owned(),
        other => other.to_owned(),
    }
}

/// Accepted drafts by position and source.
pub fn acceptance(doc: &Doc) -> String {
    let scope = overall(doc);
    let sources: BTreeSet<&String> = scope.arms.iter().flat_map(|arm| arm.lengths.keys()).collect();
    let mut pictures = vec![by_position(doc, &scope, "Whole window", |i| {
        (format!("{}/{i}/speculation/per_position", scope.path), scope.arms[i].speculation.per_position.len())
    })];
    for source in sources {
        let heading = format!("Drafts of the {}", proposer(source));
        pictures.push(by_position(doc, &scope, &heading, |i| {
            let len = scope.arms[i].lengths.get(source).map_or(0, |lengths| lengths.per_position.len());
            (format!("{}/{i}/lengths/{}/per_position", scope.path, key(source)), len)
        }));
    }
    let body = plots(&pictures);
    if body.is_empty() {
        return body;
    }
    section(
        "Acceptance by position",
        "Of the drafts at each position, how many of 100 the model itself would have chosen and were committed. The first \
         position follows the last committed token, and a draft counts only if all before it were right. With windows of one \
         width lines fall; where the policy is adaptive it drafts far ahead only where it expects to be right.",
        &(body + &shares(doc)),
    )
}

fn by_position(doc: &Doc, scope: &Scope<'_>, heading: &str, list: impl Fn(usize) -> (String, usize)) -> String {
    let mut table = Table::new(&["arm", "position", "drafted", "tested", "accepted", "% of drafted", "% of tested"]);
    let (mut series, mut entries) = (Vec::new(), Vec::new());
    for i in 0..scope.arms.len() {
        let (path, len) = list(i);
        let mut points = Vec::new();
        for position in 0..len {
            let at = |name: &str| format!("{path}/{position}/{name}");
            let share = |over: &str| doc.share(at("accepted"), at(over)).map(Figure::percent);
            table.row().named(doc.words(scope.at(i, "label")).as_ref()).head(&(position + 1).to_string());
            table.figure(doc.figure(at("drafted"))).figure(doc.figure(at("tested"))).figure(doc.figure(at("accepted")));
            table.figure(share("drafted")).figure(share("tested"));
            points.extend(share("drafted").map(|figure| ((position + 1) as f64, figure)));
        }
        if !points.is_empty() {
            entries.push((i, scope.label(doc, i)));
            series.push(Series { style: i, points, joined: true });
        }
    }
    let axes = Axes { title: heading, x: "position in the window", y: "% accepted" };
    picture(&escape(heading), &legend(&entries), &lines(&axes, &series, false), table)
}

/// The shares that an arm comes to, by workload.
fn shares(doc: &Doc) -> String {
    let mut table = Table::new(&[
        "workload",
        "arm",
        "% of drafts accepted",
        "% of tested MTP drafts",
        "% of tested tails",
        "% of look-ups that hit",
        "accepted a window",
        "tokens a window",
        "tokens a pass",
    ]);
    for scope in scopes(doc) {
        for (i, arm) in scope.arms.iter().enumerate() {
            if arm.speculation.total.drafted_n == 0 {
                continue;
            }
            match &scope.source {
                Some(words) => table.row().named(Some(words)),
                None => table.row().head("all"),
            };
            table.named(doc.words(scope.at(i, "label")).as_ref());
            let at = |name: &str| doc.figure(scope.at(i, &format!("shares/{name}")));
            for name in ["acceptance_rate", "mtp_tested_rate", "tail_rate", "suffix_hit_rate"] {
                table.figure(at(name).map(Figure::percent));
            }
            for name in ["mean_accepted", "accept_length", "tokens_per_pass"] {
                table.figure(at(name));
            }
        }
    }
    table.end()
}

/// Lengths of what was proposed, tested and accepted at once, and of what was committed at once.
pub fn lengths(doc: &Doc) -> String {
    let groups: Vec<&str> = Bins::default().in_order().map(|(name, _)| name).collect();
    let bins = |path: String| -> Vec<Option<Figure>> {
        groups.iter().map(|group| doc.figure(format!("{path}/{}", key(group)))).collect()
    };
    let scope = overall(doc);
    let mut pictures = Vec::new();
    for (i, arm) in scope.arms.iter().enumerate() {
        for source in arm.lengths.keys() {
            let kinds = [("candidate_hist", "proposed"), ("tested_hist", "tested"), ("accepted_hist", "accepted")];
            let path = |kind: &str| scope.at(i, &format!("lengths/{}/{kind}", key(source)));
            let all = kinds.map(|(kind, _)| bins(path(kind)));
            let mut table = Table::new(&["drafts", "proposed", "tested", "accepted"]);
            for (at, group) in groups.iter().enumerate() {
                table.row().head(group);
                all.iter().for_each(|figures| _ = table.figure(figures[at].clone()));
            }
            let name = doc.words(scope.at(i, "label")).map(|words| name(&words)).unwrap_or_default();
            let heading = format!("{name}, {}", escape(&proposer(source)));
            let entries: Vec<(usize, Label)> =
                kinds.iter().enumerate().map(|(at, (_, name))| (at, Label::Ours((*name).to_owned()))).collect();
            let axes = Axes { title: "Lengths of drafts", x: "drafts at once", y: "windows" };
            pictures.push(picture(&heading, &legend(&entries), &columns(&axes, &groups, &all), table));
        }
    }
    let all: Vec<Vec<Option<Figure>>> =
        (0..scope.arms.len()).map(|i| bins(scope.at(i, "emission_tokens_hist"))).collect();
    let labels: Vec<(usize, Label)> = (0..scope.arms.len()).map(|i| (i, scope.label(doc, i))).collect();
    let mut table = Table::new(&["arm", "tokens", "times"]);
    for (i, figures) in all.iter().enumerate() {
        for (group, figure) in groups.iter().zip(figures).filter(|(_, figure)| figure.is_some()) {
            table.row().named(doc.words(scope.at(i, "label")).as_ref()).head(group).figure(figure.clone());
        }
    }
    let axes = Axes { title: "Tokens committed at once", x: "tokens committed at once", y: "times" };
    pictures.push(picture("Tokens committed at once", &legend(&labels), &columns(&axes, &groups, &all), table));
    section(
        "Lengths",
        "How many drafts a proposer offered at once, how many of them were compared with the model’s choice, and how many \
         were right; and how many tokens a pass committed. Windows in which a proposer offered nothing are not counted.",
        &plots(&pictures),
    )
}

/// Everything that is counted of drafts.
pub fn counters(doc: &Doc) -> String {
    const DRAFTS: [&str; 7] =
        ["proposed_n", "trimmed_n", "drafted_n", "accepted_n", "rejected_n", "unreached_n", "discarded_n"];
    let mut table = Table::new(&[
        "workload",
        "arm",
        "who",
        "proposed",
        "trimmed",
        "drafted",
        "accepted",
        "rejected",
        "unreached",
        "discarded",
        "passes",
        "windows",
        "look-ups",
        "hits",
    ]);
    for scope in scopes(doc) {
        for (i, arm) in scope.arms.iter().enumerate() {
            let parts =
                arm.speculation.proposers.keys().map(|name| (proposer(name), format!("proposers/{}/", key(name))));
            for (who, part) in [("all".to_owned(), String::new())].into_iter().chain(parts) {
                match &scope.source {
                    Some(words) => table.row().named(Some(words)),
                    None => table.row().head("all"),
                };
                table.named(doc.words(scope.at(i, "label")).as_ref()).head(&who);
                let at = |name: &str| doc.figure(scope.at(i, &format!("speculation/{part}{name}")));
                for name in DRAFTS.into_iter().chain(["steps_n", "windows_n", "lookups_n", "hits_n"]) {
                    table.figure(at(name));
                }
            }
        }
    }
    section(
        "What became of drafts",
        "Proposed drafts are trimmed or verified; a verified one is accepted, rejected, unreached behind a rejected one, or \
         discarded behind the end of the answer. Counts are those of one round.",
        &table.end(),
    )
}
