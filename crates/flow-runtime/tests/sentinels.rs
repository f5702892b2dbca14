//! Whether the table is about the runtimes that are linked: an upgrade of Burn or CubeCL that renames, removes or adds
//! an entry, or changes a default, fails here, by name.

mod common;

use burn_std::config::BurnConfig;
use common::{everything, samples};
use cubecl_runtime::config::CubeClRuntimeConfig;
use flow_runtime::sentinel::{Drift, drift};
use flow_runtime::{DefaultValue, EXCLUDED, Excluded, Kind, OPTIONS, OptionSpec, Runtime};
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

fn defaults(runtime: Runtime) -> Json {
    match runtime {
        Runtime::Burn => serde_json::to_value(BurnConfig::default()),
        Runtime::Cubecl => serde_json::to_value(CubeClRuntimeConfig::default()),
    }
    .expect("a configuration is JSON")
}

fn at<'t>(tree: &'t Json, path: &str) -> &'t Json {
    path.split('.').fold(tree, |tree, key| &tree[key])
}

fn at_mut<'t>(tree: &'t mut Json, path: &str) -> &'t mut Json {
    path.split('.').fold(tree, |tree, key| &mut tree[key])
}

/// The rows whose path exists in this build. Only the cache of kernels comes and goes with a feature.
fn present() -> impl Iterator<Item = &'static OptionSpec> {
    OPTIONS
        .iter()
        .filter(|spec| cfg!(feature = "persistence") || spec.path != "cubecl.compilation.cache")
}

#[test]
fn every_path_type_and_default_is_that_of_the_linked_runtimes_and_nothing_is_left_out() {
    for runtime in [Runtime::Burn, Runtime::Cubecl] {
        assert_eq!(drift(present(), EXCLUDED, runtime, &defaults(runtime)), []);
    }
}

#[test]
fn the_cache_of_kernels_exists_exactly_with_the_feature_that_reads_it() {
    let exists = at(&defaults(Runtime::Cubecl), "compilation")
        .get("cache")
        .is_some();
    assert_eq!(exists, cfg!(feature = "persistence"));
}

const REAL: OptionSpec = OptionSpec {
    path: "cubecl.streaming.max_streams",
    kind: Kind::Integer { min: 1, max: 1000 },
    default: DefaultValue::Integer(128),
    features: &[],
    devices: &[],
    conflicts: &[],
    cost: "",
    doc: "",
};

/// What the sentinel says of one row, about that row.
fn judge(row: OptionSpec) -> Vec<Drift> {
    let found = drift([&row], &[], Runtime::Cubecl, &defaults(Runtime::Cubecl));
    let about = |drift: &Drift| !matches!(drift, Drift::Unlisted { path } if path != row.path);
    found.into_iter().filter(about).collect()
}

#[test]
fn the_sentinel_catches_a_fake_key_a_fake_type_and_a_fake_default() {
    assert_eq!(judge(REAL), []);
    let path = || REAL.path.to_owned();
    let fake = OptionSpec {
        path: "cubecl.streaming.most_streams",
        ..REAL
    };
    assert_eq!(
        judge(fake),
        [Drift::Unresolved {
            path: fake.path.to_owned()
        }]
    );
    let bool = OptionSpec {
        kind: Kind::Bool,
        default: DefaultValue::Bool(true),
        ..REAL
    };
    assert_eq!(
        judge(bool),
        [Drift::OtherType {
            path: path(),
            expected: "true or false".into(),
            found: "128".into()
        }]
    );
    let optional = OptionSpec {
        default: DefaultValue::Unset,
        ..REAL
    };
    assert!(matches!(&judge(optional)[..], [Drift::OtherDefault { .. }]));
    let other = OptionSpec {
        default: DefaultValue::Integer(129),
        ..REAL
    };
    assert_eq!(
        judge(other),
        [Drift::OtherDefault {
            path: path(),
            table: "129".into(),
            runtime: "128".into()
        }]
    );
}

#[test]
fn the_sentinel_catches_what_the_table_left_out_and_what_is_excluded_in_vain() {
    let rows = || {
        OPTIONS
            .iter()
            .filter(|spec| spec.path != "burn.autodiff.logger.append")
    };
    let found = drift(rows(), EXCLUDED, Runtime::Burn, &defaults(Runtime::Burn));
    assert_eq!(
        found,
        [Drift::Unlisted {
            path: "burn.autodiff.logger.append".into()
        }]
    );
    let mut excluded = EXCLUDED.to_vec();
    excluded.push(Excluded {
        path: "burn.autodiff.log",
        why: "",
    });
    let found = drift(OPTIONS, &excluded, Runtime::Burn, &defaults(Runtime::Burn));
    assert_eq!(
        found,
        [Drift::ExcludedInVain {
            path: "burn.autodiff.log".into()
        }]
    );
}

/// The runtime's configuration with one entry replaced by hand, as JSON.
fn replaced<C: DeserializeOwned + serde::Serialize>(spec: &OptionSpec, value: &Json) -> Json {
    let mut tree = defaults(spec.runtime());
    *at_mut(&mut tree, spec.inner_path()) = value.clone();
    let config: C = serde_json::from_value(tree).expect("the runtime takes the value");
    serde_json::to_value(config).expect("a configuration is JSON")
}

#[test]
fn every_value_of_every_option_changes_that_entry_and_no_other_and_comes_back() {
    for spec in present() {
        let before = defaults(spec.runtime());
        let default = at(&before, spec.inner_path());
        for value in samples(spec) {
            let mut after = match spec.runtime() {
                Runtime::Burn => replaced::<BurnConfig>(spec, &value),
                Runtime::Cubecl => replaced::<CubeClRuntimeConfig>(spec, &value),
            };
            assert_eq!(at(&after, spec.inner_path()), &value, "{}", spec.path);
            assert_eq!(after == before, value == *default, "{} = {value}", spec.path);
            *at_mut(&mut after, spec.inner_path()) = default.clone();
            assert_eq!(after, before, "{} = {value} changes other entries too", spec.path);
        }
        assert!(
            samples(spec).iter().any(|value| value != default),
            "{}",
            spec.path
        );
    }
}

/// The words that a runtime takes for an option: its complaint about a wrong one lists them.
fn words_of<C: DeserializeOwned>(spec: &OptionSpec, mut tree: Json) -> String {
    *at_mut(&mut tree, spec.inner_path()) = json!("no-such-word");
    match serde_json::from_value::<C>(tree) {
        Ok(_) => panic!("{} takes any word", spec.path),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_words_of_each_choice_are_all_that_the_runtime_takes() {
    for spec in OPTIONS {
        let (Kind::Choice(words) | Kind::Place(words)) = spec.kind else {
            continue;
        };
        let complaint = match spec.runtime() {
            Runtime::Burn => words_of::<BurnConfig>(spec, defaults(Runtime::Burn)),
            Runtime::Cubecl => words_of::<CubeClRuntimeConfig>(spec, defaults(Runtime::Cubecl)),
        };
        let mut listed: Vec<&str> = complaint.split('`').skip(3).step_by(2).collect();
        listed.retain(|word| !matches!(spec.kind, Kind::Place(_)) || *word != "directory");
        assert_eq!(listed, words, "{}: {complaint}", spec.path);
    }
}

#[test]
fn paths_are_unique_and_each_option_says_what_it_does_and_costs() {
    let mut paths: Vec<&str> = OPTIONS.iter().map(|spec| spec.path).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), OPTIONS.len());
    let context = everything();
    for spec in OPTIONS {
        let prefix = format!("{}.", spec.runtime().prefix());
        assert!(spec.path.starts_with(&prefix), "{}", spec.path);
        assert!(!spec.doc.is_empty() && !spec.cost.is_empty(), "{}", spec.path);
        assert!(spec.devices.contains(&context.device), "{}", spec.path);
        assert!(
            !format!("{}{}", spec.doc, spec.cost).contains('|'),
            "{}",
            spec.path
        );
    }
}
