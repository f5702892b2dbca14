//! Draws the noise of one sample at two steps, twice, in different orders.

use flow_rng::{Purpose, Stream};

fn main() {
    let stream = Stream::new(42, Purpose::SdeNoise);
    let first: Vec<f64> = [0, 1].map(|step| stream.at(7, step).normal()).to_vec();
    let mut second: Vec<f64> = [1, 0].map(|step| stream.at(7, step).normal()).to_vec();
    second.reverse();
    assert_eq!(first, second);
    println!("sample 7: {first:?}");
}
