//! Everything a run leaves on disk: the run directory, metrics, TensorBoard events, pictures, curves, the report,
//! and checkpoints that survive a crash.
#![doc = ""]
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
// Tensor names carry their shape: C channels, H height, W width.
#![allow(non_snake_case)]

mod aside;
mod atomic;
mod container;
mod container_error;
mod curve;
mod directory;
mod environment;
mod error;
mod escape;
mod exploit;
mod font;
mod grid;
mod hash;
mod lock;
mod logs;
mod manifest;
mod metrics;
mod probe;
mod received;
mod report;
mod reward_regression;
mod run_id;
mod statistics;
mod store;
mod summary;
mod tensorboard;
mod ticks;
mod traces;
mod video;

pub use aside::first_free;
pub use atomic::{Disk, DurableFile, Storage, atomic_write, atomic_write_in, remove_leftovers};
pub use container::{
    CheckpointReader, CheckpointWriter, MAGIC, SectionEntry, VERSION, WrittenCheckpoint, peek_checkpoint,
};
pub use container_error::CheckpointError;
pub use curve::{LineChart, Series};
pub use directory::{OnExists, Opened, RunDirectory};
pub use environment::{GitState, Host};
pub use error::{ReportError, Result};
pub use escape::escape;
pub use exploit::{Change, ExploitSigns, JudgeFell, WatchPlan};
pub use grid::{ImageGrid, Picture, Tile};
pub use hash::ContentHash;
pub use lock::{LOCK_FILE, RunLock};
pub use logs::{ContinuedMetrics, ContinuedTiming};
pub use manifest::{ConfigChange, Fallback, MANIFEST_VERSION, Manifest, Resume, config_changes, flatten};
pub use metrics::{
    MetricRecord, MetricValue, Metrics, MetricsFound, MetricsPosition, MetricsStart, MetricsWriter, Record,
};
pub use probe::{
    BYTES_PER_GIB, Stopwatch, human_duration, peak_resident_bytes, peak_resident_gib, process_cpu_s,
    resident_bytes, rfc3339,
};
pub use received::ReceivedFile;
pub use report::{
    ChartGroup, ComparedRun, Comparison, GridFigure, ReportData, RunChart, run_charts, runs_in,
    write_comparison, write_report,
};
pub use reward_regression::RewardRegression;
pub use run_id::{RunId, RunStamp};
pub use statistics::{
    Interval, IntervalMethod, PairedDifference, StatisticsError, ValueRange, mean_interval,
    paired_difference, student_t_quantile_95,
};
pub use store::{CheckpointStore, Latest, Saved};
pub use summary::{Audit, RewardAt, RewardChange, RewardSeconds, RunStatus, RunSummary, TrainedReward};
pub use tensorboard::{EventWriter, masked_crc32c};
pub use ticks::{labels, nice_ticks};
pub use traces::{CHECKPOINT_RECORD, CheckpointFound, Continuation, ManifestFound, Traces};
pub use video::{Animation, Video};
