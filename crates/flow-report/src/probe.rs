//! Probes of the process: memory, wall clock, and the text of a moment in time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes in a GiB.
pub const BYTES_PER_GIB: f64 = (1_u64 << 30) as f64;

/// The largest resident set this process has had, in bytes (`VmHWM` of `/proc/self/status`). `None` where the
/// operating system does not say.
pub fn peak_resident_bytes() -> Option<u64> {
    status_kib("VmHWM:").map(|kib| kib * 1024)
}

/// The resident set of this process now, in bytes (`VmRSS`). `None` where the operating system does not say.
pub fn resident_bytes() -> Option<u64> {
    status_kib("VmRSS:").map(|kib| kib * 1024)
}

/// [`peak_resident_bytes`] in GiB.
pub fn peak_resident_gib() -> Option<f64> {
    peak_resident_bytes().map(|bytes| bytes as f64 / BYTES_PER_GIB)
}

fn status_kib(field: &str) -> Option<u64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    field_kib(&std::fs::read_to_string("/proc/self/status").ok()?, field)
}

/// The value of a `Name:   123 kB` line.
pub(crate) fn field_kib(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Seconds of processor time that this process has used on all its threads (user and system, `/proc/self/stat`), to 10 ms.
/// `None` where the operating system does not say.
pub fn process_cpu_s() -> Option<f64> {
    /// Ticks per second of these accounts on every Linux that Rust supports (`USER_HZ`).
    const TICKS_PER_S: f64 = 100.0;
    if !cfg!(target_os = "linux") {
        return None;
    }
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may hold spaces; after it, user and system ticks are fields 12 and 13.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) as f64 / TICKS_PER_S)
}

/// A wall clock that starts when it is made.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts the clock.
    #[allow(clippy::new_without_default)]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Seconds since the start.
    pub fn wall_s(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }

    /// Seconds since the start or the last lap, and starts the next lap.
    pub fn lap_s(&mut self) -> f64 {
        let now = Instant::now();
        let lap = now - self.0;
        self.0 = now;
        lap.as_secs_f64()
    }
}

/// Seconds since 1970 (UTC).
pub(crate) fn unix_s(moment: SystemTime) -> f64 {
    moment
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs_f64()
}

/// A moment as RFC 3339 text in UTC with whole seconds, for example `2026-11-21T06:20:00Z`.
pub fn rfc3339(moment: SystemTime) -> String {
    let whole_s = unix_s(moment) as i64;
    time::OffsetDateTime::from_unix_timestamp(whole_s)
        .ok()
        .and_then(|utc| utc.format(&time::format_description::well_known::Rfc3339).ok())
        .unwrap_or_else(|| format!("unix time {whole_s} s"))
}

/// A duration for people: `8.4 s`, `3 min 05 s`, `2 h 07 min`.
pub fn human_duration(wall_s: f64) -> String {
    if !wall_s.is_finite() || wall_s < 0.0 {
        return "unknown".into();
    }
    // Without the sign of a negative zero.
    let tenths = (wall_s * 10.0).round().abs();
    if tenths < 600.0 {
        return format!("{:.1} s", tenths / 10.0);
    }
    let whole_s = wall_s.round() as u64;
    if whole_s < 3600 {
        format!("{} min {:02} s", whole_s / 60, whole_s % 60)
    } else {
        let whole_min = (wall_s / 60.0).round() as u64;
        format!("{} h {:02} min", whole_min / 60, whole_min % 60)
    }
}
