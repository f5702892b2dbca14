//! Each struct of the runtimes' configurations taken apart without `..`: a field that is renamed, removed or added
//! upstream does not compile here. Then add it to the table, or to what is excluded.

use burn_std::config::LoggerConfig as BurnLogger;
use burn_std::config::autodiff::AutodiffConfig;
use burn_std::config::fusion::{BeamSearchConfig, FusionConfig};
use burn_std::config::{BurnConfig, LogLevel};
use cubecl_environment::config::logger::LoggerConfig;
use cubecl_environment::records::RecordsConfig;
use cubecl_runtime::config::CubeClRuntimeConfig;
use cubecl_runtime::config::autotune::{AutotuneConfig, AutotuneLevel, AutotuneLogLevel, BenchConfig};
use cubecl_runtime::config::cache::CacheConfig;
use cubecl_runtime::config::compilation::{BoundsCheckMode, CompilationConfig};
use cubecl_runtime::config::environment::EnvironmentConfig;
use cubecl_runtime::config::memory::{CudaAllocator, CudaMemoryConfig, MemoryConfig, PersistentMemory};
use cubecl_runtime::config::profiling::ProfilingConfig;
use cubecl_runtime::config::streaming::{StreamPriority, StreamingConfig};
use cubecl_runtime::config::throughput::ThroughputConfig;
use flow_runtime::{EXCLUDED, OPTIONS, Runtime};

/// A logger's fields are the same everywhere. Gives the names of the sinks.
fn logger<L: LogLevel>(logger: LoggerConfig<L>) -> [&'static str; 5] {
    let LoggerConfig {
        file: _,
        append: _,
        stdout: _,
        stderr: _,
        log: _,
        level: _,
    } = logger;
    ["file", "append", "stdout", "stderr", "log"]
}

/// Whether the table offers it, or says that no build reads it.
fn has(path: &str) -> bool {
    let excluded = EXCLUDED.iter().any(|entry| path.starts_with(entry.path));
    excluded || OPTIONS.iter().any(|spec| spec.path == path)
}

#[test]
fn every_field_of_cubecl_is_known() {
    let CubeClRuntimeConfig {
        profiling: ProfilingConfig { logger: profiling },
        autotune:
            AutotuneConfig {
                logger: autotune,
                decisions,
                level,
                disable_cache: _,
                disable_short_circuit: _,
                bench:
                    BenchConfig {
                        min_samples: _,
                        max_samples: _,
                        short_circuit_samples: _,
                        speed_factor: _,
                        adaptive: _,
                    },
            },
        throughput: ThroughputConfig { disable_cache: _ },
        compilation:
            CompilationConfig {
                logger: compilation,
                #[cfg(feature = "persistence")]
                    cache: _,
                check_mode,
                f16_evaluation: _,
            },
        streaming:
            StreamingConfig {
                logger: streaming,
                max_streams: _,
                priority,
                // Its enum may grow without breaking builds; `sentinels.rs` compares its words.
                policy: _,
            },
        memory:
            MemoryConfig {
                logger: memory,
                persistent_memory,
                cuda: CudaMemoryConfig { allocator },
            },
        environment:
            EnvironmentConfig {
                name: _,
                path,
                records:
                    RecordsConfig {
                        level: _,
                        keep_sessions: _,
                    },
            },
    } = CubeClRuntimeConfig::default();
    match level {
        AutotuneLevel::Minimal | AutotuneLevel::Balanced | AutotuneLevel::Extensive | AutotuneLevel::Full => {
        }
    }
    match autotune.level {
        AutotuneLogLevel::Disabled | AutotuneLogLevel::Minimal | AutotuneLogLevel::Full => {}
    }
    match check_mode {
        BoundsCheckMode::Enforce | BoundsCheckMode::Validate | BoundsCheckMode::Auto => {}
    }
    match priority {
        StreamPriority::Default | StreamPriority::Low | StreamPriority::High => {}
    }
    match persistent_memory {
        PersistentMemory::Enabled
        | PersistentMemory::SizeMatch
        | PersistentMemory::Disabled
        | PersistentMemory::Enforced => {}
    }
    match allocator {
        CudaAllocator::Sync | CudaAllocator::Async => {}
    }
    match path {
        CacheConfig::Local | CacheConfig::Target | CacheConfig::Global | CacheConfig::Directory(_) => {}
    }
    let loggers = [
        ("profiling", logger(profiling)),
        ("autotune", logger(autotune)),
        ("compilation", logger(compilation)),
        ("streaming", logger(streaming)),
        ("memory", logger(memory)),
    ];
    for (section, sinks) in loggers {
        for sink in sinks {
            let path = format!("cubecl.{section}.logger.{sink}");
            assert!(has(&path), "{path}");
        }
    }
    assert!(
        logger(decisions)
            .iter()
            .any(|sink| has(&format!("cubecl.autotune.decisions.{sink}")))
    );
}

#[test]
fn every_field_of_burn_is_known() {
    let config = BurnConfig::default();
    let FusionConfig {
        logger: fusion,
        beam_search: BeamSearchConfig {
            max_blocks: _,
            max_explorations: _,
        },
        max_graph_size: _,
        growth_patience: _,
    } = config.fusion().clone();
    let AutodiffConfig { logger: autodiff } = config.autodiff().clone();
    let sinks: [BurnLoggerSinks; 2] = [("fusion", logger(fusion)), ("autodiff", logger(autodiff))];
    for (section, sinks) in sinks {
        for sink in sinks {
            let path = format!("burn.{section}.logger.{sink}");
            assert!(has(&path), "{path}");
        }
    }
    // The fields of the whole are private, so their names are compared as they are written.
    let whole = serde_json::to_value(&config).expect("a configuration is JSON");
    let sections: Vec<&String> = whole.as_object().expect("a table").keys().collect();
    assert_eq!(sections, ["fusion", "autodiff", "remote"]);
    assert!(OPTIONS.iter().any(|spec| spec.runtime() == Runtime::Burn));
}

type BurnLoggerSinks = (&'static str, [&'static str; 5]);

#[test]
fn burn_and_cubecl_share_the_type_of_loggers() {
    // `logger` above takes apart both; this would not compile if Burn had a type of its own.
    let shared: BurnLogger<u32> = LoggerConfig::<u32>::default();
    assert!(shared.append && shared.file.is_none());
}
