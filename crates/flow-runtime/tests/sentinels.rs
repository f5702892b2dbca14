//! Whether the table is about the runtimes that are linked: an upgrade of Burn or CubeCL that renames, removes or adds
//! an entry, or changes a default, fails here, by name.

mod common;

use burn_std::config::BurnConfig;
use common::{everything, one, samples, usable};
use cubecl_runtime::config::CubeClRuntimeConfig;
use flow_runtime::sentinel::{Drift, drift};
use flow_runtime::{
    DefaultValue, EXCLUDED, Excluded, Kind, OPTIONS, OptionSpec, Runtime, RuntimeOptions, burn_config,
    cubecl_config,
};
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

fn defaults(runtime: Runtime) -> Json {
    match runtime {
        Runtime::Burn => serde_json::to_value(BurnConfig::default()),
        Runtime::Cubecl => serde_json::to_value(CubeClRuntimeConfig::default()),
    }
    .expect("a configuration is JSON")
}

/// The runtime's configuration with the options applied, as JSON.
fn configured(options: &RuntimeOptions, runtime: Runtime) -> Json {
    match runtime {
        Runtime::Burn => serde_json::to_value(burn_config(options).expect("Burn takes the options")),
        Runtime::Cubecl => serde_json::to_value(cubecl_config(options).expect("CubeCL takes the options")),
    }
    .expect("a configuration is JSON")
}

fn at<'t>(tree: &'t Json, path: &str) -> &'t Json {
    path.split('.').fold(tree, |tree, key| &tree[key])
}

#[test]
fn every_path_type_and_default_is_that_of_the_linked_runtimes_and_nothing_is_left_out() {
    for runtime in [Runtime::Burn, Runtime::Cubecl] {
        let found = drift(usable(), EXCLUDED, runtime, &defaults(runtime));
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(found.is_empty() || found.iter().all(|line| expected_without_persistence(line)), "{found:#?}");
    }
}

/// `cubecl.environment` exists without the feature `persistence` too, where nothing reads it, so its rows are not
/// usable and its entries are unlisted.
fn expected_without_persistence(line: &str) -> bool {
    let unread = OPTIONS
        .iter()
        .filter(|spec| !usable().any(|usable| usable.path == spec.path));
    !cfg!(feature = "persistence")
        && line.contains("is new in the runtime's configuration")
        && unread.into_iter().any(|spec| line.contains(spec.path))
}

#[test]
fn the_options_of_caches_on_disk_are_in_the_table_with_the_defaults_of_the_runtime() {
    // All but one exist without the feature `persistence`; see the next test for that one.
    let rows = OPTIONS
        .iter()
        .filter(|spec| cfg!(feature = "persistence") || spec.path != "cubecl.compilation.cache");
    let found = drift(rows, EXCLUDED, Runtime::Cubecl, &defaults(Runtime::Cubecl));
    assert_eq!(found, []);
}

#[test]
fn the_cache_of_kernels_exists_exactly_with_the_feature_that_reads_it() {
    let exists = at(&defaults(Runtime::Cubecl), "compilation").get("cache").is_some();
    assert_eq!(exists, cfg!(feature = "persistence"));
}

const REAL: OptionSpec = OptionSpec {
    path: "cubecl.autotune.bench.max_samples",
    kind: Kind::Integer { min: 1, max: 1000 },
    default: DefaultValue::Integer(10),
    features: &[],
    accelerator: None,
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
        path: "cubecl.autotune.bench.most_samples",
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
            found: "10".into()
        }]
    );
    let optional = OptionSpec {
        default: DefaultValue::Unset,
        ..REAL
    };
    assert!(matches!(&judge(optional)[..], [Drift::OtherDefault { .. }]));
    let other = OptionSpec {
        default: DefaultValue::Integer(11),
        ..REAL
    };
    assert_eq!(
        judge(other),
        [Drift::OtherDefault {
            path: path(),
            table: "11".into(),
            runtime: "10".into()
        }]
    );
}

#[test]
fn the_sentinel_catches_what_the_table_left_out_and_what_is_excluded_in_vain() {
    let rows = || OPTIONS.iter().filter(|spec| spec.path != "burn.fusion.beam_search.max_blocks");
    let found = drift(rows(), EXCLUDED, Runtime::Burn, &defaults(Runtime::Burn));
    assert_eq!(
        found,
        [Drift::Unlisted {
            path: "burn.fusion.beam_search.max_blocks".into()
        }]
    );
    let mut excluded = EXCLUDED.to_vec();
    excluded.push(Excluded {
        path: "burn.fusion.beam",
        why: "",
    });
    let found = drift(OPTIONS, &excluded, Runtime::Burn, &defaults(Runtime::Burn));
    assert_eq!(
        found,
        [Drift::ExcludedInVain {
            path: "burn.fusion.beam".into()
        }]
    );
}

#[test]
fn every_value_of_every_option_changes_that_entry_and_no_other_and_comes_back() {
    for spec in usable() {
        let before = defaults(spec.runtime());
        let mut changed = 0;
        for value in samples(spec) {
            let options = one(spec.path, value.clone());
            let after = configured(&options, spec.runtime());
            assert_eq!(at(&after, spec.inner_path()), &value, "{}", spec.path);
            changed += usize::from(after != before);
            let mut restored = after.clone();
            let place = spec
                .inner_path()
                .split('.')
                .fold(&mut restored, |tree, key| &mut tree[key]);
            *place = at(&before, spec.inner_path()).clone();
            assert_eq!(restored, before, "{} changes other entries too", spec.path);
        }
        // A sample that is the default changes nothing; all the others do.
        assert!(changed + 1 >= samples(spec).len() && changed > 0, "{}", spec.path);
    }
}

/// The runtime's configuration with one entry replaced by hand, as JSON.
fn replaced<C: DeserializeOwned + serde::Serialize>(spec: &OptionSpec, value: &Json) -> Json {
    let mut tree = defaults(spec.runtime());
    let place = spec
        .inner_path()
        .split('.')
        .fold(&mut tree, |tree, key| &mut tree[key]);
    *place = value.clone();
    let config: C = serde_json::from_value(tree).expect("the runtime takes the value");
    serde_json::to_value(config).expect("a configuration is JSON")
}

#[test]
fn the_runtime_takes_and_keeps_every_value_of_the_options_of_caches_on_disk() {
    let rows = || OPTIONS.iter().filter(|spec| spec.path.starts_with("cubecl.environment."));
    assert_eq!(rows().count(), 4);
    for spec in rows() {
        for value in samples(spec) {
            let after = replaced::<CubeClRuntimeConfig>(spec, &value);
            assert_eq!(at(&after, spec.inner_path()), &value, "{}", spec.path);
        }
    }
}

/// The words that a runtime takes for an option: its complaint about a wrong one lists them.
fn words_of<C: DeserializeOwned>(spec: &OptionSpec, mut tree: Json) -> String {
    let place = spec
        .inner_path()
        .split('.')
        .fold(&mut tree, |tree, key| &mut tree[key]);
    *place = json!("no-such-word");
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
fn integers_fit_the_runtime_at_both_ends_of_their_range() {
    for spec in OPTIONS.iter().filter(|spec| usable().any(|usable| usable.path == spec.path)) {
        if let Kind::Integer { min, max } = spec.kind {
            for end in [min, max] {
                let after = configured(&one(spec.path, json!(end)), spec.runtime());
                assert_eq!(at(&after, spec.inner_path()), &json!(end));
            }
        }
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
        assert!(!format!("{}{}", spec.doc, spec.cost).contains('|'), "{}", spec.path);
    }
}
