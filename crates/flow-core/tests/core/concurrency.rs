//! Pieces of work beside one another give what they would give one after another.

use flow_core::device::ComputeDevice;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Barrier, Mutex};

fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.expect("a pool").install(work)
}

#[test]
fn results_are_in_order_for_every_number_of_pieces_and_threads() {
    let device = ComputeDevice::cpu();
    for threads in [1, 2, 3, 5] {
        for count in [0, 1, 2, 3, 7] {
            let found = on_threads(threads, || device.concurrently(count, |index| index * index));
            let expected: Vec<usize> = (0..count).map(|index| index * index).collect();
            assert_eq!(found, expected, "{count} pieces on {threads} threads");
        }
    }
}

#[test]
fn two_pieces_are_under_way_at_the_same_time_on_threads_of_their_own() {
    let device = ComputeDevice::cpu();
    // Neither could pass the barrier if the other waited for it to end.
    let (barrier, seen) = (Barrier::new(2), Mutex::new(BTreeSet::new()));
    on_threads(2, || {
        device.concurrently(2, |_| {
            barrier.wait();
            assert_eq!(rayon::current_num_threads(), 1, "operations do not split further");
            let thread = format!("{:?}", std::thread::current().id());
            seen.lock().expect("no panic").insert(thread);
        })
    });
    assert_eq!(seen.lock().expect("no panic").len(), 2);
}

#[test]
fn threads_left_over_share_the_operations_of_a_piece() {
    let device = ComputeDevice::cpu();
    let threads = on_threads(6, || device.concurrently(3, |_| rayon::current_num_threads()));
    assert_eq!(threads, [2, 2, 2]);
}

#[test]
fn a_panic_in_a_piece_reaches_the_caller_and_the_device_stays_usable() {
    let device = ComputeDevice::cpu();
    let work = || {
        on_threads(2, || {
            device.concurrently(4, |index| assert_ne!(index, 3, "piece three"))
        })
    };
    let panic = catch_unwind(AssertUnwindSafe(work)).expect_err("it panics");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.contains("piece three"), "{text}");
    assert_eq!(on_threads(2, || device.concurrently(2, |index| index)), [0, 1]);
}
