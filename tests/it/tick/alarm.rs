//! The alarm for a row that drafts for nothing beside one that does not.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use engine::api::Strategy;
use engine::limits::Limits;
use engine_tests::toy::{Rig, ToyConfig, speculation, submission};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Warnings, each as the names of its fields with their values.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        *about.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        event.record(&mut Line(&mut line));
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Runs requests together, some at a time; how many rows were told of after each time, accepted MTP drafts by ticket, and
/// the warnings.
fn run(config: &ToyConfig, times: &[&[u64]], tokens: u32) -> (Vec<u64>, Vec<u64>, Vec<String>) {
    let warnings = Warnings::default();
    let (told, accepted) = tracing::subscriber::with_default(warnings.clone(), || {
        let most = times.iter().map(|tickets| tickets.len()).max().unwrap();
        let mut rig = Rig::new(&Limits::new(most, 256), config.clone());
        let (mut told, mut accepted) = (Vec::new(), Vec::new());
        for tickets in times {
            let ask =
                |ticket: &u64| submission(*ticket, &[1, 2, 3, *ticket as u32], tokens, speculation(Strategy::Mtp, 3));
            let all: Vec<_> = tickets.iter().map(ask).collect();
            all.iter().for_each(|s| rig.submit(s));
            rig.settle();
            for s in &all {
                rig.assert_reference(s);
                accepted.push(rig.of(s.ticket.0).report.as_ref().unwrap().mtp.accepted);
            }
            told.push(rig.world.gauges().read().engine.mute);
        }
        rig.assert_empty();
        (told, accepted)
    });
    let warnings = warnings.0.lock().unwrap().clone();
    (told, accepted, warnings)
}

#[test]
fn a_row_that_drafts_for_nothing_beside_one_that_does_not_is_told_of() {
    let lost = ToyConfig { mtp_lost: Some(1), order: 4, ..ToyConfig::default() };
    let (told, accepted, warnings) = run(&lost, &[&[0, 1], &[2, 3]], 80);
    assert_eq!(accepted.iter().filter(|n| **n == 0).count(), 2, "{accepted:?}");
    assert_eq!(told, [1, 2], "once a request: {accepted:?}");
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for warning in &warnings {
        let parts = ["message=no MTP draft of a request is accepted", "request=r1v", "beside=r0v", "rejected=8 "];
        assert!(parts.iter().all(|part| warning.contains(part)), "{warning}");
    }
    // Alone, it may be the text; where all are so, the head. And where all are well there is nothing to tell.
    let alone = ToyConfig { mtp_lost: Some(0), ..lost.clone() };
    let bad = ToyConfig { mtp_lost: None, mtp_script: vec![0; 1000], ..lost.clone() };
    let well = ToyConfig { mtp_lost: None, ..lost.clone() };
    for (config, tickets) in [(&alone, &[0][..]), (&bad, &[0, 1]), (&well, &[0, 1, 2])] {
        let (told, accepted, warnings) = run(config, &[tickets], 80);
        assert_eq!((told, warnings), (vec![0], Vec::new()), "{accepted:?}");
    }
    // Few drafts say nothing.
    let (told, accepted, _) = run(&lost, &[&[0, 1]], 8);
    assert!(told == [0] && accepted.contains(&0), "{told:?} {accepted:?}");
}
