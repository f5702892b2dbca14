//! What a trajectory store returns, and what it never returns.

use flow_cache::TrajectoryStore;
use flow_core::TrajectoryId;

fn main() {
    let mut store = TrajectoryStore::default();
    let trajectory = TrajectoryId {
        sample: 0,
        conditional: true,
    };
    for step in 0..4 {
        let from = store.get(1, trajectory, 0, step).map(|(from, _)| from);
        println!("step {step}: kept from step {from:?}");
        if step % 2 == 0 {
            store.put(1, trajectory, 0, step, vec![0.0f32; 8]);
        }
    }
}
