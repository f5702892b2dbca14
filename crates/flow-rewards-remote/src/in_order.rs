//! Jobs side by side, with results in the order of the jobs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use flow_rewards::RewardError;

/// Runs the jobs `0..jobs` on at most `threads` threads. The results are in the order of the jobs.
///
/// # Errors
/// That of the first job that failed, whichever thread failed first. Jobs behind a failed one may not be run.
pub(crate) fn in_order<T: Send>(
    jobs: usize,
    threads: usize,
    run: impl Fn(usize) -> Result<T, RewardError> + Sync,
) -> Result<Vec<T>, RewardError> {
    if threads.min(jobs) < 2 {
        return (0..jobs).map(run).collect();
    }
    let next = AtomicUsize::new(0);
    let first_failed = AtomicUsize::new(usize::MAX);
    let work = || {
        let mut results = Vec::new();
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            // Jobs before the first failed one were all taken before it, so its error is the same for any number of threads.
            if job >= jobs || job > first_failed.load(Ordering::Relaxed) {
                return results;
            }
            let result = run(job);
            if result.is_err() {
                first_failed.fetch_min(job, Ordering::Relaxed);
            }
            results.push((job, result));
        }
    };
    let mut results = Vec::with_capacity(jobs);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.min(jobs)).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            match thread.join() {
                Ok(of_thread) => results.extend(of_thread),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    results.sort_by_key(|(job, _)| *job);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn results_are_in_the_order_of_the_jobs_and_the_first_error_counts() {
        for threads in [1, 2, 5, 40] {
            let squares = in_order(17, threads, |job| Ok(job * job)).unwrap();
            assert_eq!(squares, (0..17).map(|job| job * job).collect::<Vec<_>>());
            let failed = in_order(17, threads, |job| {
                if job == 4 {
                    thread::sleep(Duration::from_millis(20));
                }
                match job {
                    4 | 5 | 9 => Err(RewardError::EmptyBatch { batch: job as u64 }),
                    _ => Ok(job),
                }
            });
            assert_eq!(
                failed,
                Err(RewardError::EmptyBatch { batch: 4 }),
                "{threads} threads"
            );
        }
        assert_eq!(in_order(0, 3, Ok), Ok(vec![]));
    }
}
