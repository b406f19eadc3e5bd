//! The tick over the toy model: what is committed, counted, scheduled and freed.

use engine::api::Strategy;
use engine::limits::Limits;
use engine_tests::toy::{Rig, ToyConfig, speculation, submission};

#[test]
fn smoke() {
    let mut rig = Rig::new(&Limits::new(2, 128), ToyConfig::default());
    for (i, strategy) in Strategy::ALL.into_iter().enumerate() {
        rig.submit(&submission(i as u64, &[1, 2, 3, 4, 5], 60, speculation(strategy, 8)));
    }
    rig.settle();
    rig.assert_empty();
    for (i, strategy) in Strategy::ALL.into_iter().enumerate() {
        rig.assert_reference(&submission(i as u64, &[1, 2, 3, 4, 5], 60, speculation(strategy, 8)));
        eprintln!("{strategy:?} {:?}", rig.of(i as u64).report);
    }
}
