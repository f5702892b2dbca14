//! Reading the drawing of the crates.

use super::{Needs, read_drawing};
use std::collections::BTreeSet;

const NAMES: [&str; 5] = ["top", "a", "b", "c", "tool"];

fn named(names: &[&str]) -> Needs {
    Needs::Named(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn chains_lists_remarks_and_several_statements_on_a_line_are_understood() {
    let text = "Arrows point down.\n\n```text\ntop (all of it) ─> everything    tool  ─> a (data), the top binary\n\
                a ─> b ─> c   \nb, c ─> burn\na ─> c\n```\n";
    let drawn = read_drawing(text, &BTreeSet::from(NAMES)).unwrap();
    assert_eq!(drawn["top"], Needs::Everything);
    assert_eq!(drawn["tool"], named(&["a"]));
    assert_eq!(drawn["a"], named(&["b", "c"]));
    assert_eq!(drawn["b"], named(&["c"]));
    assert_eq!(drawn["c"], named(&[]));
}

#[test]
fn a_file_without_the_drawing_is_an_error() {
    assert!(read_drawing("no drawing here", &BTreeSet::from(NAMES)).is_err());
    assert!(read_drawing("Arrows point, but there is no block", &BTreeSet::from(NAMES)).is_err());
}
