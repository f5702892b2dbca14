//! `apply` touches what the whole process shares, and once, so each case is a process of its own: this binary started
//! again with the name of the case.

mod common;

use burn_std::config::BurnConfig;
use common::{everything, usable, written};
use cubecl_environment::stream::{self, StreamPolicy};
use cubecl_runtime::config::autotune::AutotuneLevel;
use cubecl_runtime::config::compilation::BoundsCheckMode;
use cubecl_runtime::config::streaming::StreamPriority;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use flow_runtime::{Applied, ApplyError, Context, RuntimeOptions, apply, parse};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::{Value as Json, json};
use std::process::Command;

/// Marks the process of a case.
const CASE: &str = "--case";

/// What a case asserts, and what it is called in the output.
type Case = (&'static str, fn());

const CASES: &[Case] = &[
    (
        "without_options_the_defaults_are_set_and_recorded_whatever_lies_about",
        nothing,
    ),
    (
        "options_are_in_force_and_recorded_with_default_and_source",
        in_force,
    ),
    (
        "an_option_of_one_runtime_leaves_the_defaults_to_the_other",
        one_runtime,
    ),
    (
        "a_runtime_that_was_read_before_and_is_given_nothing_is_recorded_as_found",
        found_before,
    ),
    (
        "after_cubecl_was_read_its_options_are_too_late_and_burn_is_untouched",
        cubecl_too_late,
    ),
    (
        "after_burn_was_read_its_options_are_too_late_and_cubecl_is_untouched",
        burn_too_late,
    ),
    ("a_second_application_is_too_late", twice),
    (
        "a_policy_that_the_program_chose_is_reported_not_passed_over",
        policy_of_the_program,
    ),
    ("options_win_over_files_and_environment_variables", ambient),
    (
        "a_log_file_that_cannot_be_written_is_an_error_before_anything_is_set",
        unwritable,
    ),
    ("a_log_file_in_a_new_folder_can_be_written_to", new_folder),
    ("any_valid_options_read_back_as_they_were_given", any_options),
    #[cfg(feature = "persistence")]
    ("name_and_place_of_the_caches_are_in_force", environment),
];

/// How often the random case runs, each time with other options.
const RANDOM_RUNS: usize = 12;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mark, name, ..] = &arguments[..]
        && mark == CASE
    {
        let (_, case) = CASES.iter().find(|(known, _)| known == name).expect("a case");
        return case();
    }
    if arguments.iter().any(|argument| argument == "--list") {
        CASES.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let wanted = |name: &str| filter.is_none_or(|filter| name.contains(filter.as_str()));
    let mut failures = 0;
    for (name, _) in CASES.iter().filter(|(name, _)| wanted(name)) {
        let runs = if *name == "any_valid_options_read_back_as_they_were_given" {
            RANDOM_RUNS
        } else {
            1
        };
        let failed = (0..runs).find_map(|seed| run(name, seed));
        println!(
            "test {name} ... {}",
            if failed.is_some() { "FAILED" } else { "ok" }
        );
        if let Some(output) = failed {
            println!("{output}");
            failures += 1;
        }
    }
    if failures > 0 {
        println!("{failures} failed");
        std::process::exit(1);
    }
}

/// Cases with files and environment variables of the runtimes about.
const STRAY: [&str; 3] = [
    "options_win_over_files_and_environment_variables",
    "without_options_the_defaults_are_set_and_recorded_whatever_lies_about",
    "a_runtime_that_was_read_before_and_is_given_nothing_is_recorded_as_found",
];

/// Runs a case in a process of its own, in an empty folder; its output if it fails.
fn run(name: &str, seed: usize) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args([CASE, name, &seed.to_string()]).current_dir(&folder);
    if STRAY.contains(&name) {
        command.env("CUBECL_AUTOTUNE_LEVEL", "minimal");
        command.env("BURN_FUSION_MAX_EXPLORATIONS", "1");
        for (file, text) in [
            ("cubecl.toml", "[streaming]\nmax_streams = 3\n"),
            ("burn.toml", "[fusion.beam_search]\nmax_blocks = 9\n"),
        ] {
            std::fs::write(folder.path().join(file), text).expect("writing the file");
        }
    }
    let output = command.output().expect("starting this binary");
    (!output.status.success()).then(|| {
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).into_owned()
    })
}

fn options<const N: usize>(entries: [(&str, Json); N]) -> RuntimeOptions {
    parse(&written(entries), &everything()).expect("valid options")
}

/// The records of the options that were given.
fn applied(options: &RuntimeOptions) -> Result<Vec<Applied>, ApplyError> {
    let mut records = apply(options, |key| format!("train.toml, {key}"))?;
    let paths: Vec<String> = records.iter().map(|record| record.key.clone()).collect();
    let mut expected: Vec<&str> = options.read().map(|spec| spec.path).collect();
    // Burn's, then CubeCL's, each sorted by path.
    expected.sort();
    assert_eq!(paths, expected, "every option that something reads");
    records.retain(|record| {
        let is_default = record.source == Applied::DEFAULT;
        assert!(!is_default || record.value == record.default, "{record:?}");
        !is_default
    });
    Ok(records)
}

fn is_set<C: RuntimeConfig>() -> bool {
    C::storage().lock().is_some()
}

fn nothing() {
    let empty = parse(&written([]), &everything()).expect("no options");
    assert_eq!(applied(&empty).expect("it is early enough"), []);
    assert_eq!(CubeClRuntimeConfig::get().streaming.max_streams, 128);
    assert_eq!(BurnConfig::get().fusion().beam_search.max_blocks, 5);
}

fn found_before() {
    assert_eq!(CubeClRuntimeConfig::get().streaming.max_streams, 3);
    let empty = parse(&written([]), &everything()).expect("no options");
    let records = apply(&empty, |_| unreachable!("nothing is given")).expect("nothing is too late");
    let of = |key: &str| {
        records
            .iter()
            .find(|record| record.key == key)
            .expect("it is read")
    };
    let streams = of("cubecl.streaming.max_streams");
    assert_eq!((&streams.value, &streams.default), (&json!(3), &json!(128)));
    assert_eq!(streams.source, Applied::FOUND);
    assert_eq!(of("burn.autodiff.logger.level").source, Applied::DEFAULT);
}

fn in_force() {
    let options = options([
        ("burn.autodiff.logger.append", json!(false)),
        ("burn.autodiff.logger.file", json!("autodiff.log")),
        ("burn.autodiff.logger.level", json!("basic")),
        ("cubecl.compilation.check_mode", json!("validate")),
        ("cubecl.memory.logger.level", json!("basic")),
        ("cubecl.memory.logger.file", json!("memory.log")),
        ("cubecl.streaming.max_streams", json!(254)),
        ("cubecl.streaming.policy", json!("single")),
    ]);
    let records = applied(&options).expect("it is early enough");
    let record = |key: &str, value: Json, default: Json| Applied {
        key: key.into(),
        value,
        default,
        source: format!("train.toml, {key}"),
    };
    assert_eq!(
        records,
        [
            record("burn.autodiff.logger.append", json!(false), json!(true)),
            record("burn.autodiff.logger.file", json!("autodiff.log"), Json::Null),
            record("burn.autodiff.logger.level", json!("basic"), json!("disabled")),
            record("cubecl.compilation.check_mode", json!("validate"), json!("auto")),
            record("cubecl.memory.logger.file", json!("memory.log"), Json::Null),
            record("cubecl.memory.logger.level", json!("basic"), json!("disabled")),
            record("cubecl.streaming.max_streams", json!(254), json!(128)),
            record("cubecl.streaming.policy", json!("single"), json!("per-thread")),
        ]
    );
    let cubecl = CubeClRuntimeConfig::get();
    assert!(matches!(cubecl.compilation.check_mode, BoundsCheckMode::Validate));
    assert_eq!(cubecl.streaming.max_streams, 254);
    assert_eq!(cubecl.autotune.bench.max_samples, 10);
    assert_eq!(stream::policy(), StreamPolicy::Single);
    // What Burn's backends read, cached by thread.
    let burn = burn_std::config::config();
    assert_eq!(burn.fusion().beam_search.max_blocks, 5);
    assert!(!burn.autodiff().logger.append);
}

fn one_runtime() {
    applied(&options([("cubecl.streaming.max_streams", json!(7))])).expect("it is early enough");
    assert!(is_set::<CubeClRuntimeConfig>() && is_set::<BurnConfig>());
}

/// One option of each runtime.
fn both() -> RuntimeOptions {
    options([
        ("burn.autodiff.logger.append", json!(false)),
        ("burn.autodiff.logger.file", json!("autodiff.log")),
        ("burn.autodiff.logger.level", json!("basic")),
        ("cubecl.streaming.priority", json!("low")),
    ])
}

fn cubecl_too_late() {
    CubeClRuntimeConfig::get();
    let error = applied(&both()).expect_err("CubeCL was read").to_string();
    assert!(
        error.contains("CubeCL runtime was initialised before options could be applied"),
        "{error}"
    );
    assert!(error.contains("`cubecl.streaming.priority`"), "{error}");
    assert!(!error.contains("autodiff"), "{error}");
    assert!(!is_set::<BurnConfig>());
}

fn burn_too_late() {
    burn_std::config::config();
    let error = applied(&both()).expect_err("Burn was read");
    assert!(matches!(error, ApplyError::TooLate { .. }));
    assert!(
        error.to_string().contains("`burn.autodiff.logger.append`"),
        "{error}"
    );
    assert!(!is_set::<CubeClRuntimeConfig>());
}

fn twice() {
    applied(&both()).expect("the first time");
    assert!(matches!(applied(&both()), Err(ApplyError::TooLate { .. })));
}

fn policy_of_the_program() {
    stream::set_policy(StreamPolicy::PerTask);
    let error = applied(&options([("cubecl.streaming.policy", json!("single"))])).expect_err("overruled");
    let error = error.to_string();
    let parts = [
        "`cubecl.streaming.policy`",
        "\"single\"",
        "\"per-task\" is in force",
        "the program itself",
    ];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

fn ambient() {
    applied(&both()).expect("it is early enough");
    let cubecl = CubeClRuntimeConfig::get();
    assert!(matches!(cubecl.streaming.priority, StreamPriority::Low));
    assert!(matches!(cubecl.autotune.level, AutotuneLevel::Balanced));
    assert_eq!(cubecl.streaming.max_streams, 128);
    let burn = BurnConfig::get();
    assert!(!burn.autodiff().logger.append);
    assert_eq!(burn.fusion().beam_search.max_blocks, 5);
    assert_eq!(burn.fusion().beam_search.max_explorations, None);
}

fn unwritable() {
    std::fs::write("taken", "a file").expect("writing the file");
    let options = options([
        ("burn.autodiff.logger.level", json!("basic")),
        ("burn.autodiff.logger.stderr", json!(true)),
        ("cubecl.memory.logger.file", json!("taken/memory.log")),
        ("cubecl.memory.logger.level", json!("basic")),
    ]);
    let error = applied(&options).expect_err("a file is no folder");
    assert!(matches!(&error, ApplyError::Unwritable { key, .. } if key == "cubecl.memory.logger.file"));
    assert!(error.to_string().contains("memory.log"), "{error}");
    assert!(!is_set::<BurnConfig>() && !is_set::<CubeClRuntimeConfig>());
}

fn new_folder() {
    std::fs::create_dir("run").expect("a folder");
    std::fs::write("run/old.log", "kept\n").expect("writing the file");
    let context = Context {
        base: "run".into(),
        ..everything()
    };
    let entries = written([
        ("burn.autodiff.logger.append", json!(false)),
        ("burn.autodiff.logger.file", json!("old.log")),
        ("burn.autodiff.logger.level", json!("basic")),
        ("cubecl.profiling.logger.file", json!("logs/deep/profile.log")),
        ("cubecl.profiling.logger.level", json!("basic")),
    ]);
    let options = parse(&entries, &context).expect("valid options");
    let records = applied(&options).expect("folders are made");
    assert_eq!(records[1].value, json!("run/old.log"));
    assert!(std::path::Path::new("run/logs/deep/profile.log").is_file());
    // Looking whether a file can be written to must not empty it; that is the logger's to do.
    assert_eq!(
        std::fs::read_to_string("run/old.log").expect("the file"),
        "kept\n"
    );
}

fn any_options() {
    let seed: u64 = std::env::args()
        .nth(3)
        .and_then(|seed| seed.parse().ok())
        .expect("a seed");
    let mut runner = TestRunner::deterministic();
    // Files are made here, so their names must be such that the file system takes; the pure tests take any.
    let strategy = common::valid_options(usable().filter(|spec| !spec.path.ends_with(".file")).collect());
    let mut sets = (0..=seed).map(|_| strategy.new_tree(&mut runner).expect("options").current());
    let entries = sets.next_back().expect("at least one");
    let options = parse(&entries, &everything()).expect("valid options");
    let records = applied(&options).expect("it is early enough");
    assert_eq!(records.len(), entries.len());
    for record in records {
        assert_eq!(record.value, entries[&record.key], "{}", record.key);
    }
}

#[cfg(feature = "persistence")]
fn environment() {
    let options = options([
        ("cubecl.compilation.cache", json!(true)),
        ("cubecl.environment.name", json!("h100")),
        ("cubecl.environment.path", json!({ "directory": "caches/here" })),
        ("cubecl.environment.records.level", json!("full")),
    ]);
    assert_eq!(applied(&options).expect("it is early enough").len(), 4);
    assert_eq!(&*cubecl_environment::environment::active(), "h100");
    assert_eq!(
        cubecl_environment::environment::root(),
        std::path::Path::new("caches/here")
    );
    assert!(CubeClRuntimeConfig::get().compilation.cache);
}
