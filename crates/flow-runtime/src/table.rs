//! The table of options. Parser, schema, documentation, application and tests all read it and nothing else.
//!
//! Facts are from the sources of `cubecl-runtime` 0.11.3 (`src/config`), `cubecl-server` 0.11.3, `cubecl-cuda` 0.11.3
//! and `burn-std` 0.22.1 (`src/config`); `tests/sentinels.rs` compares paths, types, choices and
//! defaults with the crates that are linked.

use crate::rules::{
    APPEND_WITHOUT_FILE, ENFORCED_MEMORY, LOGGER_WITHOUT_SINK, NO_RECORDS, PER_TASK_STREAMS, SINGLE_STREAM,
    SINK_WITHOUT_LEVEL,
};
use crate::{DefaultValue, Feature, Kind, OptionSpec, Rule};
use flow_config::DeviceKind;

/// Every option, in the order of the documentation.
pub static OPTIONS: &[OptionSpec] = &TABLE;

/// An entry of the runtimes' configurations that is deliberately not an option.
#[derive(Clone, Copy, Debug)]
pub struct Excluded {
    /// Path as in the table; everything below it is meant too.
    pub path: &'static str,
    /// Why.
    pub why: &'static str,
}

/// What the runtimes have and no build of flow-train reads, so that it is not offered. A test demands that each entry is either here or in [`OPTIONS`].
pub const EXCLUDED: &[Excluded] = &[
    Excluded {
        path: "burn.fusion",
        why: "Burn's fusion is in no build of flow-train, whose kernels are fused by hand (`fused_kernels`)",
    },
    Excluded {
        path: "burn.remote",
        why: "flow-train does not use remote devices",
    },
    Excluded {
        path: "cubecl.autotune",
        why: "CubeCL's tuning is in no build of flow-train, whose kernels are chosen by tables: a choice by timing gives \
              other bits from run to run",
    },
    Excluded {
        path: "cubecl.throughput",
        why: "the measured peaks of a device are for tuning, which is in no build of flow-train",
    },
    Excluded {
        path: "cubecl.compilation.f16_evaluation",
        why: "read by CubeCL's runtime for processors only; flow-train's processor device is `flex`",
    },
];

const CUDA: &[DeviceKind] = &[DeviceKind::Cuda];
const ANY: &[DeviceKind] = &[DeviceKind::Cpu, DeviceKind::Cuda];
const CUBECL: &[Feature] = &[Feature::Cubecl];
const STORED: &[Feature] = &[Feature::Cubecl, Feature::Persistence];
const NVIDIA: &[Feature] = &[Feature::Cubecl, Feature::Cuda];

/// A row of CubeCL's that suits CUDA devices, to be completed.
const fn cubecl(
    path: &'static str,
    kind: Kind,
    default: DefaultValue,
    features: &'static [Feature],
) -> OptionSpec {
    OptionSpec {
        path,
        kind,
        default,
        features,
        devices: CUDA,
        conflicts: &[],
        cost: "",
        doc: "",
    }
}

const SINGLE_OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        cost: "disk space; saves compilation in later processes",
        doc: "Keep compiled kernels in the environment's store.",
        ..cubecl(
            "cubecl.compilation.cache",
            Kind::Bool,
            DefaultValue::Bool(false),
            STORED,
        )
    },
    OptionSpec {
        cost: "`enforce` and `validate` slow down kernels that are launched unchecked",
        doc: "Bounds checks in kernels: where they are not declared needless (`auto`), everywhere (`enforce`), or \
              everywhere and reporting what an unchecked kernel would have touched (`validate`).",
        ..cubecl(
            "cubecl.compilation.check_mode",
            Kind::Choice(&["enforce", "validate", "auto"]),
            DefaultValue::Word("auto"),
            CUBECL,
        )
    },
    OptionSpec {
        conflicts: &[&SINGLE_STREAM],
        cost: "every stream in use holds memory of its own; streams that share a number wait for each other",
        doc: "How many streams there are. 255, which CubeCL's type allows, leaves no room for the stream that it adds.",
        ..cubecl(
            "cubecl.streaming.max_streams",
            Kind::Integer { min: 1, max: 254 },
            DefaultValue::Integer(128),
            CUBECL,
        )
    },
    OptionSpec {
        cost: "`low` yields to other users of the device, `high` makes them wait",
        doc: "Priority of the device's streams.",
        ..cubecl(
            "cubecl.streaming.priority",
            Kind::Choice(&["default", "low", "high"]),
            DefaultValue::Word("default"),
            NVIDIA,
        )
    },
    OptionSpec {
        conflicts: &[&PER_TASK_STREAMS],
        cost: "`single` lets nothing overlap",
        doc: "Which stream work goes to: one per thread, one per asynchronous task, or one for all.",
        ..cubecl(
            "cubecl.streaming.policy",
            Kind::Choice(&["per-thread", "per-task", "single"]),
            DefaultValue::Word("per-thread"),
            CUBECL,
        )
    },
    OptionSpec {
        conflicts: &[&ENFORCED_MEMORY],
        cost: "`enforced` never reuses a buffer for another size, so memory may run out",
        doc: "Pool of buffers that live long, such as weights: on request (`enabled`), on request and for sizes that \
              match (`size-match`, meant for training), never (`disabled`), always (`enforced`).",
        ..cubecl(
            "cubecl.memory.persistent_memory",
            Kind::Choice(&["enabled", "size-match", "disabled", "enforced"]),
            DefaultValue::Word("enabled"),
            CUBECL,
        )
    },
    OptionSpec {
        cost: "`async` may hold more memory; `sync` may make the device wait when a pool grows",
        doc: "How pools get memory from the driver: `cuMemAlloc` (`sync`) or in the order of the stream (`async`).",
        ..cubecl(
            "cubecl.memory.cuda.allocator",
            Kind::Choice(&["sync", "async"]),
            DefaultValue::Word("sync"),
            NVIDIA,
        )
    },
    OptionSpec {
        cost: "a new name starts with empty caches",
        doc: "Name of the store of tuning results and compiled kernels.",
        ..cubecl(
            "cubecl.environment.name",
            Kind::Name,
            DefaultValue::Word("default"),
            STORED,
        )
    },
    OptionSpec {
        cost: "a new place starts with empty caches",
        doc: "Where stores are: the current folder, the `target` folder of the project, the user's cache folder, or \
              the folder named.",
        ..cubecl(
            "cubecl.environment.path",
            Kind::Place(&["local", "target", "global"]),
            DefaultValue::Word("target"),
            STORED,
        )
    },
    OptionSpec {
        cost: "`full` stores the source of every kernel",
        doc: "What the store remembers of how it was filled.",
        ..cubecl(
            "cubecl.environment.records.level",
            Kind::Choice(&["off", "basic", "full"]),
            DefaultValue::Word("basic"),
            STORED,
        )
    },
    OptionSpec {
        conflicts: &[&NO_RECORDS],
        cost: "older records are deleted",
        doc: "How many processes' records the store keeps; without it, all.",
        ..cubecl(
            "cubecl.environment.records.keep_sessions",
            Kind::Integer {
                min: 0,
                max: u32::MAX as u64,
            },
            DefaultValue::Unset,
            STORED,
        )
    },
];

const FILE: &str = "Write the log to this file.";
const APPEND: &str =
    "Add to the file (`true`) or replace it. Loggers of one file share the choice of the first.";
const STDOUT: &str = "Write the log to standard output.";
const STDERR: &str = "Write the log to standard error.";
const CRATE: &str = "Pass the log on to the `log` crate at this level.";

/// A row of a logger's.
const fn sink(
    path: &'static str,
    kind: Kind,
    default: DefaultValue,
    features: &'static [Feature],
    conflicts: &'static [&'static Rule],
    doc: &'static str,
) -> OptionSpec {
    OptionSpec {
        conflicts,
        cost: "time and space for what is written",
        doc,
        ..cubecl(path, kind, default, features)
    }
}

/// The six rows of a logger. `$default` is its level if nothing is said.
macro_rules! logger {
    ($prefix:literal, $features:expr, $devices:expr, $levels:expr, $default:literal, $doc:literal) => {{
        const ROWS: [OptionSpec; 6] = [
            sink(
                concat!($prefix, ".level"),
                Kind::Choice($levels),
                DefaultValue::Word($default),
                $features,
                &[&LOGGER_WITHOUT_SINK],
                $doc,
            ),
            sink(
                concat!($prefix, ".file"),
                Kind::File,
                DefaultValue::Unset,
                $features,
                &[&SINK_WITHOUT_LEVEL],
                FILE,
            ),
            sink(
                concat!($prefix, ".append"),
                Kind::Bool,
                DefaultValue::Bool(true),
                $features,
                &[&APPEND_WITHOUT_FILE],
                APPEND,
            ),
            sink(
                concat!($prefix, ".stdout"),
                Kind::Bool,
                DefaultValue::Bool(false),
                $features,
                &[&SINK_WITHOUT_LEVEL],
                STDOUT,
            ),
            sink(
                concat!($prefix, ".stderr"),
                Kind::Bool,
                DefaultValue::Bool(false),
                $features,
                &[&SINK_WITHOUT_LEVEL],
                STDERR,
            ),
            sink(
                concat!($prefix, ".log"),
                Kind::Choice(&["info", "debug", "trace"]),
                DefaultValue::Unset,
                $features,
                &[&SINK_WITHOUT_LEVEL],
                CRATE,
            ),
        ];
        const {
            let mut rows = ROWS;
            let mut row = 0;
            while row < rows.len() {
                rows[row].devices = $devices;
                row += 1;
            }
            rows
        }
    }};
}

const LOGGERS: [[OptionSpec; 6]; 5] = [
    logger!(
        "cubecl.compilation.logger",
        CUBECL,
        CUDA,
        &["disabled", "basic", "full"],
        "disabled",
        "How much is logged of compilation; `full` has the source of kernels."
    ),
    logger!(
        "cubecl.streaming.logger",
        CUBECL,
        CUDA,
        &["disabled", "basic", "full"],
        "disabled",
        "How much is logged of streams."
    ),
    logger!(
        "cubecl.memory.logger",
        CUBECL,
        CUDA,
        &["disabled", "basic", "full"],
        "disabled",
        "How much is logged of memory pools."
    ),
    logger!(
        "cubecl.profiling.logger",
        CUBECL,
        CUDA,
        &["disabled", "minimal", "basic", "medium", "full"],
        "disabled",
        "How much is logged of each kernel that runs. From `basic` on kernels are timed, which makes them wait for \
         one another."
    ),
    logger!(
        "burn.autodiff.logger",
        &[],
        ANY,
        &["disabled", "basic", "medium", "full"],
        "disabled",
        "How much is logged of backward passes: size of the graph, then each tensor kept or computed again, then \
         each node."
    ),
];

const ROWS: usize = SINGLE_OPTIONS.len() + 6 * LOGGERS.len();

static TABLE: [OptionSpec; ROWS] = {
    let mut table = [SINGLE_OPTIONS[0]; ROWS];
    let mut at = 0;
    let mut row = 0;
    while row < SINGLE_OPTIONS.len() {
        table[at] = SINGLE_OPTIONS[row];
        (at, row) = (at + 1, row + 1);
    }
    row = 0;
    while row < 6 * LOGGERS.len() {
        table[at] = LOGGERS[row / 6][row % 6];
        (at, row) = (at + 1, row + 1);
    }
    table
};
