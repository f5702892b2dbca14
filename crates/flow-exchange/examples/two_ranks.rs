//! A sum over two ranks, each a thread, with the bits of one rank: `cargo run --release -p flow-exchange --example two_ranks`.

use std::time::Duration;

use flow_exchange::{HostValues, Lanes, Lost, Values, in_process};

fn main() -> Result<(), Lost> {
    // Four lanes, of which each of two ranks sums two.
    let lanes = Lanes::new(4);
    let threads: Vec<_> = in_process(2, Duration::from_secs(10))
        .into_iter()
        .map(|exchange| {
            std::thread::spawn(move || {
                let rank = exchange.world().rank as f32;
                let mut sum = HostValues(vec![1.0 + rank, 10.0]);
                let mut values: [&mut dyn Values; 1] = [&mut sum];
                exchange.sum(&lanes, &mut values)?;
                Ok::<_, Lost>(sum.0)
            })
        })
        .collect();
    for (rank, thread) in threads.into_iter().enumerate() {
        println!("rank {rank}: {:?}", thread.join().expect("no panic")?);
    }
    Ok(())
}
