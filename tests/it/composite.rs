//! What the composite window is for: fewer target passes than either proposer alone.

use std::sync::Arc;

use engine::api::{Command, Strategy, WindowPolicy};
use engine::clock::Monotonic;
use engine::cost::Cost;
use engine::engine::{Settings, start};
use engine::exec::{CpuExecutor, ExecOptions};
use engine::limits::Limits;
use engine::model::load::LoadOptions;
use engine::schedule::Schedule;
use engine_bin::embed::run_all;
use engine_bin::open::{ModelSource, Opened};
use engine_io::OpenOptions;
use engine_tests::edits::{prompts, submission};

/// On the edit prompts, with windows as wide as allowed, the composite needs fewer passes than `mtp` and than
/// `ngram-suffix` on at least six of eight, and is nowhere more than 5 % behind the better one.
#[test]
fn composite_windows_need_the_fewest_passes() {
    let opened = Opened::new(&ModelSource::BuiltIn, OpenOptions::default(), LoadOptions::default())
        .expect("the built-in model loads");
    let limits = Limits::new(4, 1024);
    let executor = CpuExecutor::new(Arc::clone(&opened.model), limits.clone(), ExecOptions::default());
    let settings = Settings { schedule: Schedule::Inline, cost: Some(Cost::default()) };
    let clock = Box::new(Monotonic::default());
    let handle = start(Box::new(executor), &limits, Arc::clone(&opened.pieces), settings, clock).expect("it starts");

    let mut fewer = 0;
    let prompts = prompts(&opened);
    assert_eq!(prompts.len(), 8);
    for prompt in &prompts {
        let submissions = Strategy::ALL
            .into_iter()
            .zip(0..)
            .map(|(strategy, ticket)| submission(ticket, &prompt.tokens, 400, strategy, WindowPolicy::Fixed))
            .collect();
        let outcomes = run_all(&handle, submissions).expect("it runs");
        let passes: Vec<u64> = outcomes.iter().map(|o| o.report.first + o.report.steps).collect();
        let [off, mtp, suffix, both] = passes[..] else { panic!("four strategies") };
        for outcome in &outcomes[1..] {
            assert_eq!(outcome.tokens, outcomes[0].tokens, "{}", prompt.id);
        }
        assert_eq!(off, outcomes[0].tokens.len() as u64, "{}: a pass a token without drafts", prompt.id);
        let better = mtp.min(suffix);
        assert!(both as f64 <= 1.05 * better as f64, "{}: {both} passes, {mtp} and {suffix} alone", prompt.id);
        assert!(outcomes[3].report.mtp.accepted > 0 && outcomes[3].report.suffix.accepted > 0, "{}", prompt.id);
        fewer += usize::from(both < better);
    }
    assert!(fewer >= 6, "fewer passes on {fewer} of 8 prompts");
    handle.commands.send(Command::Stop).expect("the engine takes it");
    handle.join().expect("a clean end");
}
