//! Copies of code in pages.

use super::renewed;
use std::fs;

const SOURCE: &str = "fn a() {}\n    // ANCHOR: part\n    // ANCHOR: inner\n    fn b() {\n\n        1\n    }\n    // ANCHOR_END: inner\n    // ANCHOR_END: part\n";

fn renew(page: &str) -> Result<String, String> {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("code.rs"), SOURCE).expect("written");
    renewed(&folder.path().join("page.md"), page).map_err(|error| format!("{error:#}"))
}

#[test]
fn a_copy_becomes_what_its_source_is_and_the_rest_of_the_page_stays() {
    let page =
        |code: &str| format!("# A\n\n<!-- code: code.rs:part -->\n```rust,ignore\n{code}```\n\nText.\n");
    let wanted = page("fn b() {\n\n    1\n}\n");
    assert_eq!(renew(&page("fn old() {}\n")).as_deref(), Ok(&*wanted));
    assert_eq!(renew(&page("")).as_deref(), Ok(&*wanted));
    assert_eq!(renew(&wanted).as_deref(), Ok(&*wanted));
    let plain = "Text.\n\n```rust\nlet a = 1;\n```\n";
    assert_eq!(renew(plain).as_deref(), Ok(plain));
}

#[test]
fn a_comment_that_names_what_is_not_there_is_an_error() {
    for (page, said) in [
        ("<!-- code: other.rs:part -->\n```\n```\n", "cannot read other.rs"),
        ("<!-- code: code.rs:whole -->\n```\n```\n", "has no part `whole`"),
        ("<!-- code: code.rs -->\n```\n```\n", "names no part"),
        ("<!-- code: code.rs:part -->\nText.\n", "no block of code"),
        (
            "<!-- code: code.rs:part -->\n```rust\nfn a() {}\n",
            "does not end",
        ),
    ] {
        let error = renew(page).expect_err(page);
        assert!(error.contains(said), "{error}");
    }
}
