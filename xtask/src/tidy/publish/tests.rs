//! What is said of manifests.

use super::{Known, included, leaves};
use std::path::Path;
use toml::Table;

const GOOD: &str = r#"
[package]
name = "a"
version.workspace = true
rust-version.workspace = true
license.workspace = true
repository.workspace = true
documentation = "https://docs.rs/a"
readme = "README.md"
keywords = ["one"]
categories = ["science"]
[package.metadata.docs.rs]
targets = []
[dependencies]
b.workspace = true
serde = "1"
[dev-dependencies]
b = { path = "../b" }
"#;

fn problems(manifest: &str) -> Vec<String> {
    let dependencies: Table = "b = { version = \"0.1.0\", path = \"b\" }".parse().expect("TOML");
    let known = Known {
        version: "0.1.0",
        dependencies: &dependencies,
        members: vec!["a", "b", "xtask"],
    };
    assert!(known.problems_of_workspace().is_empty());
    known.problems(&manifest.parse().expect("TOML"), false)
}

#[test]
fn a_manifest_that_crates_io_takes_has_no_problems() {
    assert_eq!(problems(GOOD), [""; 0]);
}

#[test]
fn each_thing_that_crates_io_or_a_package_misses_is_said() {
    for (from, to, said) in [
        ("repository.workspace = true", "", "has no `repository`"),
        ("readme = \"README.md\"", "", "has no `readme`"),
        ("categories = [\"science\"]", "", "has no `categories`"),
        ("[\"one\"]", "[]", "needs 1 to 5"),
        (
            "[\"one\"]",
            "[\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"]",
            "needs 1 to 5",
        ),
        ("[\"one\"]", "[\"two words\"]", "`two words`"),
        (
            "b.workspace = true",
            "b = { path = \"../b\" }",
            "is not the workspace's",
        ),
        (
            "b.workspace = true",
            "xtask.workspace = true",
            "not for crates.io",
        ),
        (
            "b = { path = \"../b\" }",
            "b.workspace = true",
            "wait for each other",
        ),
    ] {
        let found = problems(&GOOD.replace(from, to)).join("\n");
        assert!(found.contains(said), "{to}: {found}");
    }
}

#[test]
fn a_member_without_a_version_is_said_of_the_workspace() {
    for entry in [
        "b = { path = \"b\" }",
        "b = { version = \"0.0.9\", path = \"b\" }",
    ] {
        let dependencies: Table = entry.parse().expect("TOML");
        let known = Known {
            version: "0.1.0",
            dependencies: &dependencies,
            members: vec!["b"],
        };
        assert_eq!(known.problems_of_workspace().len(), 1, "{entry}");
    }
}

#[test]
fn an_include_from_outside_the_crate_is_found() {
    let source =
        "include_str!(\"../README.md\"); include_bytes!(concat!(\"a/\", $name)); include_str!(\n \"x\")";
    assert_eq!(included(source), ["../README.md", "x", "a/"]);
    assert!(!leaves(Path::new("src/lib.rs"), "../README.md"));
    assert!(!leaves(Path::new("src/a/b.rs"), "../../assets/x"));
    assert!(leaves(Path::new("src/lib.rs"), "../../../configs/a.toml"));
    assert!(leaves(Path::new("src/a/b.rs"), "../../../README.md"));
}
