//! Running work on a pool of threads, and measuring it.

use std::error::Error;
use std::time::Instant;

/// Runs `work` on a worker of a pool of its own, as `flow-train` does.
pub fn in_pool(
    threads: &str,
    work: impl FnOnce() -> Result<(), Box<dyn Error>> + Send,
) -> Result<(), Box<dyn Error>> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.parse()?)
        .stack_size(16 << 20)
        .build()?;
    pool.install(|| work().map_err(|error| error.to_string()))
        .map_err(Into::into)
}

/// Milliseconds of `repeats` calls, each of which does the work `times`, after two that do not count.
pub fn measure(repeats: usize, times: usize, mut work: impl FnMut()) -> Vec<f64> {
    work();
    work();
    (0..repeats)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64() * 1e3 / times as f64
        })
        .collect()
}
