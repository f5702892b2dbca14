//! Gradients of two ranks, each a thread, added up as one row: `cargo run --release -p flow-exchange-cube --example two_ranks`.

use flow_core::cpu;
use flow_core::device::ComputeDevice;
use flow_exchange::{Lanes, Lost, Values, in_process};
use flow_exchange_cube::FlatTensor;
use std::time::Duration;

fn main() -> Result<(), Lost> {
    let shapes: [&[usize]; 2] = [&[2, 2], &[3]];
    let threads: Vec<_> = in_process(2, Duration::from_secs(10))
        .into_iter()
        .map(|exchange| {
            std::thread::spawn(move || {
                let device = ComputeDevice::cpu();
                let rank = exchange.world().rank as f32;
                let weight = device.plain(vec![rank; 4], shapes[0]);
                // Of the second tensor only rank 1 has a gradient.
                let bias = (rank > 0.0).then(|| device.plain(vec![1.0, 2.0, 3.0], shapes[1]));
                let gradients = [Some(&weight), bias.as_ref()];
                let mut flat = FlatTensor::pack(&device, gradients.into_iter().zip(shapes));
                let mut values: [&mut dyn Values; 1] = [&mut flat];
                exchange.sum(&Lanes::new(2), &mut values)?;
                Ok::<_, Lost>(flat.unpack(shapes).iter().map(cpu::to_host).collect::<Vec<_>>())
            })
        })
        .collect();
    for (rank, thread) in threads.into_iter().enumerate() {
        println!("rank {rank}: {:?}", thread.join().expect("no panic")?);
    }
    Ok(())
}
