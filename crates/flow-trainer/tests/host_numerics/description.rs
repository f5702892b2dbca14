//! What a run is, and which of its keys may change when it goes on.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use flow_config::{Config, DataConfig, Finetune, TextConfig, WordsText};
use flow_trainer::description::rules::{self, RULES, Rule};
use flow_trainer::description::{Change, Description, forbidden};
use flow_trainer::setup::PipelineFolders;
use serde_json::{Value, json};

const BASE: &str = "config_version = 1\n[[rewards]]\nkind = \"digit-classifier\"\nweights = \"built-in\"\n";

fn config(overrides: &[&str]) -> Config {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    test_catalog::parse_named("test.toml", BASE, &overrides)
        .unwrap_or_else(|report| panic!("{report}"))
        .config
}

fn shapes(seed: u64) -> DataConfig {
    DataConfig::new(
        "shapes",
        test_catalog::params(json!({ "image_size": 24, "seed": seed })),
    )
}

fn changes(before: &[&str], after: &[&str]) -> Vec<Change> {
    let described = |overrides| Description::of_config(&config(overrides));
    described(before).changes(&described(after), &test_catalog::CATALOG)
}

fn keys(changes: &[Change]) -> Vec<&str> {
    changes.iter().map(|change| change.key.as_str()).collect()
}

/// Every key of the schema that holds a value, `[]` for a place in a list.
fn schema_keys() -> BTreeSet<String> {
    fn resolve<'a>(schema: &'a Value, mut node: &'a Value) -> Vec<&'a Value> {
        let mut nodes = vec![node];
        while let Some(reference) = node.get("$ref").and_then(Value::as_str) {
            node = schema
                .pointer(reference.trim_start_matches('#'))
                .expect("a reference leads somewhere");
            nodes.push(node);
        }
        nodes
    }
    fn walk(schema: &Value, key: &str, node: &Value, keys: &mut BTreeSet<String>) -> bool {
        let mut has_keys = false;
        for node in resolve(schema, node) {
            for keyword in ["oneOf", "anyOf", "allOf"] {
                for alternative in node.get(keyword).and_then(Value::as_array).into_iter().flatten() {
                    has_keys |= walk(schema, key, alternative, keys);
                }
            }
            for keyword in ["if", "then", "else"] {
                has_keys |= node
                    .get(keyword)
                    .is_some_and(|node| walk(schema, key, node, keys));
            }
            for (name, below) in node
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                has_keys = true;
                let key = if key.is_empty() {
                    name.clone()
                } else {
                    format!("{key}.{name}")
                };
                if !walk(schema, &key, below, keys) {
                    keys.insert(key);
                }
            }
            if let Some(items) = node.get("items").filter(|items| items.is_object()) {
                has_keys |= walk(schema, &format!("{key}[]"), items, keys);
            }
        }
        has_keys
    }
    let schema = test_catalog::schema();
    let mut keys = BTreeSet::new();
    walk(&schema, "", &schema, &mut keys);
    assert!(keys.len() > 150, "{}", keys.len());
    keys
}

#[test]
fn every_key_of_the_schema_has_a_rule_and_every_rule_a_key() {
    let keys = schema_keys();
    for key in &keys {
        let known = RULES.iter().any(|(section, _)| rules::is_below(key, section));
        assert!(
            known,
            "say in `description/rules.rs` whether `{key}` may change when a run goes on"
        );
    }
    for (section, _) in RULES {
        assert!(
            keys.iter().any(|key| rules::is_below(key, section)),
            "there is no `{section}`"
        );
    }
    let unknown = rules::of("sampling.added_later", &json!(1), &json!(2));
    assert!(
        matches!(unknown, Rule::Fixed(_)),
        "what nobody thought of may not change"
    );
    assert!(!rules::is_below("run.seedling", "run.seed"));
}

/// What differs between the base config changed by `before` and by `after`.
fn changes_of(before: impl Fn(&mut Config), after: impl Fn(&mut Config)) -> Vec<Change> {
    let (mut one, mut other) = (config(&[]), config(&[]));
    before(&mut one);
    after(&mut other);
    Description::of_config(&one).changes(&Description::of_config(&other), &test_catalog::CATALOG)
}

fn lora(config: &mut Config) {
    config.model.finetune = Finetune::Lora;
    config.lora.rank = 4;
}

fn mmdit(config: &mut Config) {
    config.model.architecture = "mmdit".into();
}

#[test]
fn a_config_differs_from_itself_in_nothing_however_its_values_are_written() {
    let configs: [fn(&mut Config); 3] = [lora, mmdit, |_| {}];
    for same in configs {
        assert!(changes_of(same, same).is_empty());
    }
    // Values that are left out and what they stand for are the same.
    let written = |config: &mut Config| {
        lora(config);
        (config.lora.alpha, config.lora.seed) = (Some(8.0), Some(0));
        config.evaluation.steps = Some(config.scheduler.steps);
        config.eval_rewards = Some(config.rewards.clone());
    };
    assert!(changes_of(lora, written).is_empty());
    // What the model does not read is not part of the run.
    let unread = |config: &mut Config| {
        config.model.set("mmdit", "num_layers", 7);
        config.lora.rank = 3;
        config.text = TextConfig::Words(WordsText { tokens: 40, seed: 9 });
    };
    assert!(changes_of(|_| {}, unread).is_empty());
}

#[test]
fn constants_that_no_shape_shows_are_refused_by_name() {
    type Case = (fn(&mut Config), fn(&mut Config), &'static str);
    let same: fn(&mut Config) = |_| {};
    let cases: [Case; 15] = [
        (
            same,
            |c| c.model.set("dit", "position", "rope"),
            "model.dit.position",
        ),
        (same, |c| c.model.set("dit", "heads", 6), "model.dit.heads"),
        (same, |c| c.model.set("dit", "layers", 5), "model.dit.layers"),
        (
            |c| c.model.set("dit", "moe.top_k", 2),
            |c| c.model.set("dit", "moe.top_k", 1),
            "model.dit.moe.top_k",
        ),
        (same, lora, "model.finetune"),
        (
            lora,
            |c| {
                lora(c);
                c.lora.alpha = Some(64.0);
            },
            "lora.alpha",
        ),
        (
            lora,
            |c| {
                lora(c);
                c.lora.targets = vec!["to_q".into()];
            },
            "lora.targets",
        ),
        (
            mmdit,
            |c| {
                mmdit(c);
                c.text = TextConfig::Words(WordsText { tokens: 16, seed: 5 });
            },
            "text.seed",
        ),
        (
            mmdit,
            |c| {
                mmdit(c);
                c.model.set("mmdit", "num_attention_heads", 12);
            },
            "model.mmdit.num_attention_heads",
        ),
        (same, |c| c.run.seed = 5, "run.seed"),
        (same, |c| c.data = shapes(0), "data.kind"),
        (|c| c.data = shapes(0), |c| c.data = shapes(4), "data.seed"),
        (
            same,
            |c| {
                c.algorithm = test_catalog::CATALOG
                    .algorithm("grpo-guard")
                    .expect("it is there")
            },
            "algorithm.kind",
        ),
        (same, |c| c.rewards.clear(), "rewards[0].kind"),
        (same, |c| c.ema.enabled = true, "ema.enabled"),
    ];
    for (before, after, key) in cases {
        let changes = changes_of(before, after);
        let forbidden: Vec<&str> = forbidden(&changes)
            .iter()
            .map(|change| change.key.as_str())
            .collect();
        assert!(forbidden.contains(&key), "{key}: {changes:?}");
    }
    let other = "rewards=[{ kind = 'digit-classifier', weights = 'built-in', mode = 'log-probability' }]";
    assert_eq!(keys(&changes(&[], &[other]))[1], "rewards[0].mode");
}

#[test]
fn what_may_change_is_told_and_not_refused() {
    let after = [
        "run.steps=7",
        "optimizer.learning_rate=0.5",
        "sampling.prompts_per_step=4",
        "sampling.micro_batch=16",
        "evaluation.seed=3",
        "acceleration={ rollout = [{ name = 'feature_cache', params = { policy = 'fixed' } }] }",
    ];
    let changes = changes(&[], &after);
    assert!(forbidden(&changes).is_empty(), "{changes:?}");
    let told = keys(&changes);
    for key in [
        "run.steps",
        "optimizer.learning_rate",
        "sampling.prompts_per_step",
        "acceleration.rollout[0].name",
    ] {
        assert!(told.contains(&key), "{key}: {told:?}");
    }
    let measures = changes
        .iter()
        .find(|change| change.key == "evaluation.seed")
        .unwrap();
    assert!(matches!(measures.rule, Rule::Measures(_)));
    assert!(
        measures
            .to_string()
            .starts_with("evaluation.seed = 3, was 1234: "),
        "{measures}"
    );
    let off = self::changes(&["ema.enabled=true"], &[]);
    assert!(
        forbidden(&off).is_empty() && keys(&off) == ["ema.enabled"],
        "{off:?}"
    );
}

#[test]
fn an_accelerator_before_the_one_that_stores_weights_is_no_other_form() {
    let stores = |format: &str, keep: &str| {
        format!(
            "{{ name = 'low_precision', params = {{ compute = 'storage', format = '{format}', keep = [{keep}] }} }}"
        )
    };
    let list = |entries: &[&str]| format!("acceleration.shared=[{}]", entries.join(", "));
    let (fp8, fused) = (
        stores("fp8", "'to_q', 'proj_out'"),
        "{ name = 'fused_kernels', params = { mode = 'full' } }",
    );
    let alone = list(&[&fp8]);
    let moved = changes(&[&alone], &[&list(&[fused, &fp8])]);
    assert!(!moved.is_empty() && forbidden(&moved).is_empty(), "{moved:?}");
    let moved_back = changes(&[&list(&[fused, &fp8])], &[&alone]);
    assert!(forbidden(&moved_back).is_empty(), "{moved_back:?}");

    for other in [
        list(&[fused, &stores("nf4", "'to_q', 'proj_out'")]),
        list(&[fused, &stores("fp8", "'to_q'")]),
        list(&[fused]),
    ] {
        let changes = changes(&[&alone], &[&other]);
        assert!(!forbidden(&changes).is_empty(), "{other}: {changes:?}");
    }
}

#[test]
fn files_are_compared_by_what_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &str| fs::write(folder.path().join(name), bytes).unwrap();
    file("a.safetensors", "one");
    file("same.safetensors", "one");
    file("b.safetensors", "two");
    let of = |name: &str, base: &Path| {
        let reward = format!("rewards=[{{ kind = 'digit-classifier', weights = '{name}' }}]");
        let config = config(&[&reward, &format!("model.weights={name}")]);
        Description::of(&config, base, &PipelineFolders::default()).unwrap()
    };
    let before = of("a.safetensors", folder.path());
    assert!(
        before
            .changes(&of("same.safetensors", folder.path()), &test_catalog::CATALOG)
            .is_empty(),
        "only its name is another"
    );
    let changes = before.changes(&of("b.safetensors", folder.path()), &test_catalog::CATALOG);
    assert_eq!(
        keys(&changes),
        ["eval_rewards[0].weights", "model.weights", "rewards[0].weights"]
    );
    assert!(changes[1].to_string().contains("BLAKE3"), "{}", changes[1]);
    // The same name, other contents.
    file("a.safetensors", "three");
    assert_eq!(
        forbidden(&before.changes(&of("a.safetensors", folder.path()), &test_catalog::CATALOG)).len(),
        2
    );
    // A folder, by the files in it.
    fs::create_dir(folder.path().join("w")).unwrap();
    file("w/1.safetensors", "one");
    let before = of("w", folder.path());
    file("w/notes.txt", "x");
    assert!(
        before
            .changes(&of("w", folder.path()), &test_catalog::CATALOG)
            .is_empty()
    );
    file("w/2.safetensors", "two");
    assert_eq!(
        forbidden(&before.changes(&of("w", folder.path()), &test_catalog::CATALOG)).len(),
        2
    );
}

#[test]
fn a_config_of_an_older_version_lacks_keys_and_is_the_same_run() {
    let now = Description::of_config(&config(&[]));
    let mut older = now.clone();
    let sections = older.config.as_object_mut().unwrap();
    sections.remove("advantage");
    sections["model"]["dit"]
        .as_object_mut()
        .unwrap()
        .remove("qk_norm");
    assert!(
        older.changes(&now, &test_catalog::CATALOG).is_empty(),
        "{:?}",
        older.changes(&now, &test_catalog::CATALOG)
    );
    let other = Description::of_config(&config(&["model.dit.qk_norm=false"]));
    assert_eq!(
        keys(&older.changes(&other, &test_catalog::CATALOG)),
        ["model.dit.qk_norm"]
    );
    // One that cannot be read as a config at all is compared as it stands.
    older.config["model"]["gone"] = json!(1);
    assert!(keys(&older.changes(&now, &test_catalog::CATALOG)).contains(&"model.gone"));
}

#[test]
fn a_rewards_network_is_compared_by_its_weights_its_config_and_its_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &str| fs::write(folder.path().join(name), bytes).unwrap();
    for clip in ["clip", "moved"] {
        fs::create_dir(folder.path().join(clip)).unwrap();
        for name in ["model.safetensors", "config.json", "merges.txt"] {
            file(&format!("{clip}/{name}"), name);
        }
    }
    file("head.pth", "head");
    let of = |clip: &str| {
        let reward = format!("rewards=[{{ kind = 'aesthetic', path = '{clip}', head = 'head.pth' }}]");
        Description::of(&config(&[&reward]), folder.path(), &PipelineFolders::default()).unwrap()
    };
    let before = of("clip");
    assert!(before.changes(&of("moved"), &test_catalog::CATALOG).is_empty());
    let changed = |key: &str| {
        let changes = before.changes(&of("clip"), &test_catalog::CATALOG);
        assert_eq!(
            keys(&changes),
            [format!("eval_rewards[0].{key}"), format!("rewards[0].{key}")]
        );
        assert_eq!(forbidden(&changes).len(), 1);
    };
    for name in ["model.safetensors", "config.json", "merges.txt"] {
        file(&format!("clip/{name}"), "other");
        changed("path");
        file(&format!("clip/{name}"), name);
    }
    file("head.pth", "other");
    changed("head");
}

#[test]
fn a_folder_of_onnx_models_is_compared_by_them_and_a_recogniser_with_the_detector_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &str| fs::write(folder.path().join(name), bytes).unwrap();
    fs::create_dir(folder.path().join("ocr")).unwrap();
    let names = ["ocr/rec.onnx", "ocr/det.onnx", "words.txt"];
    for name in names {
        file(name, name);
    }
    let of = |path: &str| {
        let reward = format!("rewards=[{{ kind = 'ocr', path = '{path}', dictionary = 'words.txt' }}]");
        Description::of(&config(&[&reward]), folder.path(), &PipelineFolders::default()).unwrap()
    };
    for path in ["ocr", "ocr/rec.onnx"] {
        let before = of(path);
        for (name, key) in names.into_iter().zip(["path", "path", "dictionary"]) {
            file(name, "other");
            let changes = before.changes(&of(path), &test_catalog::CATALOG);
            assert_eq!(
                keys(&changes),
                [format!("eval_rewards[0].{key}"), format!("rewards[0].{key}")],
                "{path}: {name}"
            );
            assert_eq!(forbidden(&changes).len(), 1);
            file(name, name);
        }
        assert!(before.changes(&of(path), &test_catalog::CATALOG).is_empty());
    }
}

#[test]
fn a_reward_within_a_reward_is_compared_as_one_that_stands_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &str| fs::write(folder.path().join(name), bytes).unwrap();
    file("a.safetensors", "one");
    file("moved.safetensors", "one");
    file("b.safetensors", "two");
    let of = |weights: &str| {
        let reward = format!(
            "rewards=[{{ kind = 'rank-in-group', reward = 'digit-classifier', params = {{ weights = '{weights}' }} }}]"
        );
        Description::of(&config(&[&reward]), folder.path(), &PipelineFolders::default()).unwrap()
    };
    let before = of("a.safetensors");
    let none = before.changes(&of("moved.safetensors"), &test_catalog::CATALOG);
    assert!(none.is_empty(), "{none:?}");
    let other = before.changes(&of("b.safetensors"), &test_catalog::CATALOG);
    assert_eq!(
        keys(&other),
        ["eval_rewards[0].params.weights", "rewards[0].params.weights"]
    );
    assert_eq!(forbidden(&other).len(), 1);
}

#[test]
fn how_long_and_in_which_batches_a_reward_is_asked_may_change_and_what_it_is_may_not() {
    let remote = |rest: &str| {
        format!("rewards=[{{ kind = 'remote', servers = ['http://a:1'], groupwise = false, {rest} }}]")
    };
    let before = remote("timeout_s = 60.0, retries = 3, batch = 16");
    let changes_to = |after: &str| changes(&[&before], &[after]);
    let asked = changes_to(&remote("timeout_s = 600.0, retries = 30, batch = 8"));
    assert!(forbidden(&asked).is_empty() && asked.len() == 6, "{asked:?}");
    // Evaluations before and after can be compared: nothing measures something else.
    assert!(
        asked
            .iter()
            .all(|change| matches!(change.rule, Rule::MayChange(_))),
        "{asked:?}"
    );
    let moved = changes_to(&before.replace("http://a:1", "http://b:2"));
    assert!(forbidden(&moved).is_empty() && !moved.is_empty(), "{moved:?}");
    let other = changes_to(&before.replace("groupwise = false", "groupwise = true"));
    assert_eq!(forbidden(&other).len(), 1, "{other:?}");
}

#[test]
fn a_window_of_another_kind_needs_no_seed_and_another_seed_is_another_run() {
    let random = "scheduler.window={ kind = 'random', count = 2, from = [0, 1, 2], seed = 3 }";
    let all = "scheduler.window={ kind = 'all' }";
    for (before, after) in [(random, all), (all, random)] {
        let changes = changes(&[before], &[after]);
        assert!(forbidden(&changes).is_empty(), "{changes:?}");
        assert!(keys(&changes).contains(&"scheduler.window.kind"), "{changes:?}");
    }
    let other = random.replace("seed = 3", "seed = 4");
    let changes = changes(&[random], &[&other]);
    assert_eq!(keys(&changes), ["scheduler.window.seed"]);
    assert_eq!(forbidden(&changes).len(), 1);
}

#[test]
fn prompts_of_a_file_are_compared_by_what_they_say_and_not_by_where_they_lie() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    file(
        "a.jsonl",
        "{\"prompt\": \"a fox\", \"n\": 1}\n{\"prompt\": \"an owl\", \"n\": 2}\n",
    );
    file(
        "moved.jsonl",
        "{\"prompt\": \"a fox\", \"n\": 1}\n\n{\"prompt\": \"an owl\", \"n\": 2}\n",
    );
    file(
        "text.jsonl",
        "{\"prompt\": \"a fox\", \"n\": 1}\n{\"prompt\": \"an eagle owl\", \"n\": 2}\n",
    );
    file(
        "metadata.jsonl",
        "{\"prompt\": \"a fox\", \"n\": 7}\n{\"prompt\": \"an owl\", \"n\": 2}\n",
    );
    file(
        "more.jsonl",
        "{\"prompt\": \"a fox\", \"n\": 1}\n{\"prompt\": \"an owl\", \"n\": 2}\n{\"prompt\": \"a hare\", \"n\": 3}\n",
    );
    let of = |name: &str, seed: u64| {
        let mut config = config(&[]);
        let params = json!({ "path": name, "test_count": 1, "seed": seed });
        config.data = DataConfig::new("prompts", test_catalog::params(params));
        let mut described = Description::of(&config, folder.path(), &PipelineFolders::default()).unwrap();
        let plugins = flow_trainer::Plugins::built_in().unwrap();
        let dataset = plugins
            .data
            .build(&config.data.kind, &config.data.params, folder.path())
            .unwrap();
        described.add_prompts(&*dataset);
        described
    };
    let before = of("a.jsonl", 1);
    let none = before.changes(&of("moved.jsonl", 1), &test_catalog::CATALOG);
    assert!(none.is_empty(), "{none:?}");
    for name in ["text.jsonl", "metadata.jsonl", "more.jsonl"] {
        let changes = before.changes(&of(name, 1), &test_catalog::CATALOG);
        assert_eq!(keys(&changes), ["data"], "{name}");
        let words = changes[0].to_string();
        assert!(words.contains("the run has other prompts"), "{words}");
        assert!(changes[0].set_back().contains("the prompts of then"));
        assert_eq!(forbidden(&changes).len(), 1);
    }
    // A key says more than what follows from it.
    let changes = before.changes(&of("text.jsonl", 5), &test_catalog::CATALOG);
    assert_eq!(keys(&changes), ["data.seed"]);
    // A checkpoint of before: its config alone is compared.
    let mut older = before.clone();
    older
        .contents
        .as_mut()
        .unwrap()
        .retain(|key, _| key != "data/prompts");
    let moved = older.changes(&of("moved.jsonl", 1), &test_catalog::CATALOG);
    assert_eq!(keys(&moved), ["data.path"]);
}

#[test]
fn the_form_of_frozen_weights_may_not_change_and_other_accelerators_may() {
    let computed = |compute: &str, params: &str| {
        let entry = format!("name = \"low_precision\", params = {{ compute = \"{compute}\", {params} }}");
        format!("acceleration.shared=[{{ {entry} }}]")
    };
    let entry = |params: &str| computed("storage", params);
    let products = computed("fp8", "format = \"fp8\"");
    let [fp8, int8, nf4] = ["fp8", "int8", "nf4"].map(|format| entry(&format!("format = \"{format}\"")));
    let kept = entry("format = \"fp8\", keep = [\"to_q\"]");
    let [in_run, gradients] = ["run", "fp8"].map(|precision| {
        computed(
            "fp8",
            &format!("format = \"fp8\", data_gradient = \"{precision}\""),
        )
    });
    let none: &[&str] = &[];
    for (before, after) in [
        (none, &[&*fp8][..]),
        (&[&*fp8][..], none),
        (&[&*fp8][..], &[&*int8][..]),
        (&[&*nf4][..], &[&*int8][..]),
        (&[&*fp8][..], &[&*kept][..]),
        (&[&*fp8][..], &[&*products][..]),
        (&[&*products][..], &[&*gradients][..]),
        (&[&*gradients][..], &[&*in_run][..]),
    ] {
        let changes = changes(before, after);
        assert!(!forbidden(&changes).is_empty(), "{before:?} to {after:?}");
    }
    assert!(changes(&[&*fp8], &[&*fp8]).is_empty());
    // Left out, it is the default.
    assert!(changes(&[&*products], &[&*in_run]).is_empty());
    let other = changes(none, &["acceleration.shared=[{ name = \"exact_reuse\" }]"]);
    assert!(!other.is_empty() && forbidden(&other).is_empty(), "{other:?}");
}
