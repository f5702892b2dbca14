//! Rules on the text of files.

use super::{MACHINE_FOLDERS, Problems, check_text};
use std::path::Path;

fn problems(path: &str, text: &str) -> Vec<String> {
    let mut problems = Problems::default();
    let ending = path.rsplit_once('.').unwrap_or_default().1;
    check_text(Path::new(path), ending, text, &mut problems);
    problems.found
}

#[test]
fn a_clean_file_has_no_problem() {
    assert!(problems("crates/x/src/lib.rs", "//! What it is for.\n\nfn main() {}\n").is_empty());
}

#[test]
fn every_broken_rule_is_named_with_its_line() {
    let unfinished = concat!(
        "//! Docs.\n    to",
        "do!()\nlet x = 1; \nstatic ",
        "mut STATE: u8 = 0;"
    );
    let found = problems("crates/x/src/a.rs", unfinished);
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found.iter().any(|problem| problem.contains("a.rs:2:")));
    assert!(
        found
            .iter()
            .any(|problem| problem.contains("a.rs:3: white space"))
    );
    assert!(found.iter().any(|problem| problem.contains("a.rs:4:")));
    assert!(
        found
            .iter()
            .any(|problem| problem.contains("does not end with a newline"))
    );
}

#[test]
fn a_file_that_does_not_say_what_it_is_for_or_is_too_long_is_named() {
    assert!(problems("crates/x/src/a.rs", "fn main() {}\n")[0].contains("does not open with"));
    let long = "//! Docs.\n".to_owned() + &"\n".repeat(600);
    assert!(problems("crates/x/src/a.rs", &long)[0].contains("601 lines"));
}

#[test]
fn folders_of_one_machine_are_found_and_folders_of_the_repository_are_not() {
    let folder = MACHINE_FOLDERS[0];
    assert_eq!(problems("a.md", &format!("see {folder}x\n")).len(), 1);
    assert_eq!(
        problems("a.md", &format!("see docs{folder}x and ..{folder}x\n")).len(),
        0
    );
    let reader = concat!("/ho", "me/me/runs");
    assert_eq!(problems("a.md", &format!("see {reader}\n")).len(), 0);
    assert_eq!(
        problems("a.md", &format!("see {}\n", reader.replace("me/me", "me/you"))).len(),
        1
    );
}
