//! What is wrong with toolchain, citation and changelog is found.

use super::{changelog, citation, toolchain};

#[test]
fn the_toolchain_is_a_release_of_the_version_that_the_workspace_wants() {
    let with = |channel: &str| format!("[toolchain]\nchannel = \"{channel}\"\nprofile = \"minimal\"\n");
    assert_eq!(toolchain(&with("1.95.0"), "1.95"), None);
    assert_eq!(toolchain(&with("1.95.12"), "1.95"), None);
    for wrong in ["1.95", "1.96.0", "1.950.0", "1.95.", "1.95.x", "stable"] {
        let problem = toolchain(&with(wrong), "1.95");
        assert!(
            problem.is_some_and(|problem| problem.contains("1.95.PATCH")),
            "{wrong}"
        );
    }
    assert!(toolchain("[toolchain]\n", "1.95").is_some());
}

#[test]
fn the_citation_has_the_version_of_the_workspace() {
    let text = "cff-version: 1.2.0\nversion: 0.1.0\n";
    assert_eq!(citation(text, "0.1.0"), None);
    assert!(citation(text, "0.2.0").is_some());
    assert!(
        citation(text, "1.2.0").is_some(),
        "the format's version is another"
    );
}

#[test]
fn the_changelog_has_a_heading_for_the_version_of_the_workspace() {
    let text = "# Changelog\n\n## 0.2.0, unreleased\n\n## 0.1.0\n\nNot 0.3.0.\n";
    for known in ["0.1.0", "0.2.0"] {
        assert_eq!(changelog(text, known), None, "{known}");
    }
    for unknown in ["0.3.0", "0.1", "0.2.0,"] {
        assert!(changelog(text, unknown).is_some(), "{unknown}");
    }
}
