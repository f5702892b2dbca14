//! Markdown as the tasks read it.

use super::{Link, anchors, includes, links};

#[test]
fn links_are_found_with_their_lines_and_code_is_left_out() {
    let page = "See [a](one.md) and ![b](two.png#x).\n\n```rust\nlet a = b[0](c);\n```\n`[no](code.md)` [c]( three.md )\n";
    let found = |line, target: &str| Link {
        line,
        target: target.into(),
    };
    assert_eq!(
        links(page),
        [found(1, "one.md"), found(1, "two.png#x"), found(6, "three.md")]
    );
}

#[test]
fn anchors_are_those_that_browsers_are_sent_to() {
    let page = "# From rewards, to `advantages`!\n\n```sh\n# a comment\n```\n## Exit codes\n#no-heading\n";
    assert_eq!(anchors(page), ["from-rewards-to-advantages", "exit-codes"]);
}

#[test]
fn includes_are_found_in_code() {
    let page = "Text.\n\n```rust,ignore\n{{#include ../code.rs:part}}\n```\n{{#title x}}\n";
    assert_eq!(includes(page), [4]);
}
