//! Where relative paths start, and `~`.

use std::path::{Path, PathBuf};

use flow_config::Config;
use flow_config::codes::RULE_HOME;
use test_catalog::{inspect, parse_named};

const CONFIG: &str = "config_version = 1
[run]
dir = \"runs\"
[model]
weights = \"a.safetensors\"
[[rewards]]
kind = \"digit-classifier\"
weights = \"judge\"
[[rewards]]
kind = \"digit-classifier\"
name = \"mine\"
weights = \"c.safetensors\"
";

fn read(path: &Path, overrides: &[&str]) -> Config {
    let overrides: Vec<String> = overrides.iter().map(|one| (*one).to_owned()).collect();
    let inspection = inspect(path, &overrides);
    inspection
        .partial
        .unwrap_or_else(|| panic!("{}", inspection.report))
        .config
}

fn classifier(config: &Config, index: usize) -> PathBuf {
    let reward = &config.rewards[index];
    PathBuf::from(
        reward.params["weights"]
            .as_str()
            .unwrap_or_else(|| panic!("{reward:?}")),
    )
}

#[test]
fn a_path_starts_where_it_was_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.toml");
    std::fs::write(&path, CONFIG).expect("written");
    let here = std::env::current_dir().expect("a folder");

    // In the file: at its folder. Whoever opens weights joins the folder; runs are opened as they are.
    let config = read(&path, &[]);
    assert_eq!(config.run.dir, folder.path().join("runs"));
    assert_eq!(config.model.weights.as_deref(), Some(Path::new("a.safetensors")));
    assert_eq!(classifier(&config, 0), Path::new("judge"), "a word, and no path");

    // On the command line: at the working directory.
    let overrides = [
        "run.dir=elsewhere",
        "model.weights=b.safetensors",
        "rewards.1.weights=d.safetensors",
        "pretrain.output=p.safetensors",
    ];
    let config = read(&path, &overrides);
    assert_eq!(config.run.dir, Path::new("elsewhere"));
    assert_eq!(config.model.weights, Some(here.join("b.safetensors")));
    assert_eq!(config.pretrain.output, here.join("p.safetensors"));
    assert_eq!(
        (classifier(&config, 0), classifier(&config, 1)),
        (PathBuf::from("judge"), here.join("d.safetensors"))
    );

    // Absolute paths, and what nobody gave.
    let absolute = folder.path().join("x.safetensors");
    let config = read(&path, &[&format!("model.weights=\"{}\"", absolute.display())]);
    assert_eq!(config.model.weights, Some(absolute));
    std::fs::write(&path, "config_version = 1\n").expect("written");
    assert_eq!(read(&path, &[]).run.dir, test_catalog::defaults().run.dir);
}

#[test]
fn a_path_in_a_list_of_a_plug_in_starts_where_it_was_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.toml");
    let text = "config_version = 1\n[algorithm]\nkind = \"diffusion-opd\"\n[[algorithm.teachers]]\nname = \"one\"\n\
                adapter = \"a.safetensors\"\n[[algorithm.teachers]]\nname = \"two\"\nweights = \"b.safetensors\"\n";
    std::fs::write(&path, text).expect("written");
    let here = std::env::current_dir().expect("a folder");
    let config = read(&path, &["algorithm.teachers.1.weights=c.safetensors"]);
    let teachers = &config.algorithm.params["teachers"];
    let of = |index: usize, key: &str| PathBuf::from(teachers[index][key].as_str().expect("a path"));
    assert_eq!(of(0, "adapter"), Path::new("a.safetensors"));
    assert_eq!(of(1, "weights"), here.join("c.safetensors"));
}

#[test]
fn a_home_folder_is_refused_wherever_a_path_stands() {
    for (key, text) in [
        ("run.dir", "[run]\ndir = \"~/runs\""),
        ("run.dir", "[run]\ndir = \"~\""),
        ("model.weights", "[model]\nweights = \"~/a.safetensors\""),
        ("model.weights", "[model]\nweights = \"~alice/a.safetensors\""),
        ("run.dir", "[run]\ndir = \"/scratch/$USER/runs\""),
        ("model.weights", "[model]\nweights = \"${HOME}/a.safetensors\""),
        ("pretrain.output", "[pretrain]\noutput = \"~/a.safetensors\""),
        (
            "pretrain.classifier.output",
            "[pretrain.classifier]\noutput = \"~/a.safetensors\"",
        ),
        (
            "rewards.0.weights",
            "[[rewards]]\nkind = \"digit-classifier\"\nweights = \"~/a.safetensors\"",
        ),
        (
            "rewards.0.params.weights",
            "[[rewards]]\nkind = \"rank-in-group\"\nreward = \"digit-classifier\"\nparams = { weights = \"~/a.safetensors\" }",
        ),
    ] {
        let report =
            parse_named("a.toml", &format!("config_version = 1\n{text}\n"), &[]).expect_err("refused");
        let found = report.diagnostics.iter().find(|one| one.code == RULE_HOME);
        let found = found.unwrap_or_else(|| panic!("{report}"));
        assert_eq!(found.path, key, "{report}");
        assert!(
            found
                .help
                .as_deref()
                .is_some_and(|help| help.contains("write the path out")),
            "{report}"
        );
    }
    let over = ["run.dir=~/runs".to_owned()];
    let report = parse_named("a.toml", "config_version = 1\n", &over).expect_err("refused");
    assert!(
        report.diagnostics.iter().any(|one| one.code == RULE_HOME),
        "{report}"
    );
    assert!(parse_named("a.toml", "config_version = 1\n[run]\ndir = \"a/~b\"\n", &[]).is_ok());
}

#[test]
fn a_path_of_a_reward_within_a_reward_starts_where_it_was_written() {
    let here = std::env::current_dir().expect("a folder");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.toml");
    let of = |name: &str| {
        let text = "config_version = 1\n[[rewards]]\nkind = 'rank-in-group'\nreward = 'digit-classifier'\nparams = { weights = 'built-in' }\n";
        std::fs::write(&path, text).expect("written");
        let config = read(&path, &[&format!("rewards.0.params.weights={name}")]);
        config.rewards[0].params["params"]["weights"].clone()
    };
    assert_eq!(of("judge"), "judge", "a word, and no path");
    let file = here.join("c.safetensors");
    assert_eq!(
        Some(of("c.safetensors").as_str().unwrap_or_default()),
        file.to_str()
    );
}

/// A name that is no UTF-8 cannot stand in JSON as it is, and must not end the program.
#[cfg(unix)]
#[test]
fn a_path_that_is_no_utf_8_is_written_down_readably() {
    use std::os::unix::ffi::OsStrExt;
    let mut config = test_catalog::defaults().clone();
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(b"/a/\xff/b.safetensors"));
    config.run.dir = path.clone();
    config.pretrain.output = path.clone();
    config.model.weights = Some(path);
    let json = serde_json::to_value(&config).expect("a config is plain data");
    for text in [
        &json["run"]["dir"],
        &json["pretrain"]["output"],
        &json["model"]["weights"],
    ] {
        assert_eq!(*text, "/a/\u{fffd}/b.safetensors");
    }
    assert!(json["model"]["path"].is_null());
}

/// A path that the sections declare and these rules do not know would start elsewhere.
#[test]
fn every_path_of_the_sections_has_the_rules_of_paths() {
    let sections = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sections");
    let anchored = include_str!("../src/anchor.rs");
    let mut declared = 0;
    for entry in std::fs::read_dir(sections).expect("the folder") {
        let text = std::fs::read_to_string(entry.expect("a file").path()).expect("a text");
        let fields = text.lines().filter_map(|line| line.trim().strip_prefix("pub "));
        for field in fields.filter(|field| field.contains("PathBuf")) {
            let name = field.split(':').next().unwrap_or(field);
            assert!(
                anchored.contains(&format!(".{name}")),
                "src/anchor.rs does not know `{name}`"
            );
            declared += 1;
        }
    }
    assert!(declared >= 6, "{declared}");
}
