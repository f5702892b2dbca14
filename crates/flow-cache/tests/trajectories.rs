//! What the trajectory store promises.

use flow_cache::TrajectoryStore;
use flow_core::TrajectoryId;

const LANE: TrajectoryId = TrajectoryId {
    sample: 5,
    conditional: true,
};

#[test]
fn a_lane_gets_back_its_own_state_only() {
    let mut store = TrajectoryStore::default();
    store.put(1, LANE, 2, 0, 'a');
    store.put(1, TrajectoryId { sample: 6, ..LANE }, 2, 0, 'b');
    store.put(
        1,
        TrajectoryId {
            conditional: false,
            ..LANE
        },
        2,
        0,
        'c',
    );
    assert_eq!(store.get(1, LANE, 2, 1), Some((0, &'a')));
    assert_eq!(store.get(1, LANE, 3, 1), None);
    assert_eq!(store.len(), 3);
}

#[test]
fn state_of_the_same_or_a_later_step_is_not_returned() {
    let mut store = TrajectoryStore::default();
    store.put(1, LANE, 0, 4, ());
    assert_eq!(store.get(1, LANE, 0, 4), None);
    assert_eq!(store.get(1, LANE, 0, 3), None);
    assert_eq!(store.get(1, LANE, 0, 5), Some((4, &())));
}

#[test]
fn a_new_iteration_forgets_the_old_one() {
    let mut store = TrajectoryStore::default();
    store.put(1, LANE, 0, 0, ());
    assert_eq!(store.get(2, LANE, 0, 1), None);
    assert!(store.is_empty());
}
