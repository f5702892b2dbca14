//! What a launcher says of this process: `mpirun -n 2 cargo run --release -p flow-rendezvous --example who_am_i`.

use flow_rendezvous::{Launch, RendezvousError};

fn main() -> Result<(), RendezvousError> {
    // The program asks, and the crate is told: a library reads no variables by itself.
    match Launch::from_variables(|name| std::env::var(name).ok())? {
        Some(launch) => println!(
            "rank {} of {}, by {:?}",
            launch.rank, launch.ranks, launch.launcher
        ),
        None => println!("one process, which no launcher started"),
    }
    Ok(())
}
