//! Whether something else used the processor during a measurement, from Linux's own accounts.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

/// Share of the processor that others may use in a measurement that counts.
pub const ALLOWED: f64 = 0.03;

/// Ticks so far: of the whole machine, of its busy part, and of the processes that this one started and waited for.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    all: u64,
    busy: u64,
    ours: u64,
}

impl Ticks {
    /// As of now; `None` where the system keeps no such accounts.
    pub fn now() -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        // user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in the first two.
        let counts: Vec<u64> = line
            .split_whitespace()
            .take(8)
            .filter_map(|count| count.parse().ok())
            .collect();
        let all = counts.iter().sum();
        let idle = counts.get(3)? + counts.get(4)?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        // The name in parentheses may hold spaces; after it, children's user and system ticks are fields 14 and 15.
        let fields: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            all,
            busy: all - idle,
            ours: field(13)? + field(14)?,
        })
    }

    /// Share of the processor that others used since `earlier`.
    pub fn others_since(self, earlier: Self) -> f64 {
        let busy = (self.busy - earlier.busy).saturating_sub(self.ours - earlier.ours);
        busy as f64 / (self.all - earlier.all).max(1) as f64
    }
}

/// Waits for a second in which nothing else runs, at most `patience_s` seconds.
pub fn wait(patience_s: u64) {
    for _ in 0..patience_s {
        let Some(before) = Ticks::now() else { return };
        sleep(Duration::from_secs(1));
        let Some(after) = Ticks::now() else { return };
        if after.others_since(before) <= ALLOWED {
            return;
        }
    }
}
