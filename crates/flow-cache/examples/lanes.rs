//! What a lane store returns, and what it never returns.

use flow_cache::LaneStore;
use flow_core::Lane;

fn main() {
    let mut store = LaneStore::default();
    let lane = Lane {
        sample: 0,
        conditional: true,
    };
    for step in 0..4 {
        let from = store.get(1, lane, 0, step).map(|(from, _)| from);
        println!("step {step}: kept from step {from:?}");
        if step % 2 == 0 {
            store.put(1, lane, 0, step, vec![0.0f32; 8]);
        }
    }
}
