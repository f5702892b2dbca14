//! What only a shell expands in a path.

/// What only a shell expands in `path`: `~` at its beginning, or a variable at the beginning of one of its folders (`$HOME`,
/// `${SCRATCH}`). Taken as it stands it would be a folder of that name.
pub fn unexpanded(path: &str) -> Option<&str> {
    if path.starts_with('~') {
        return Some("~");
    }
    path.split('/').find(|folder| {
        let name = folder.strip_prefix('$');
        name.is_some_and(|name| name.starts_with(|c: char| c == '{' || c == '_' || c.is_ascii_alphabetic()))
    })
}

#[cfg(test)]
mod tests {
    use super::unexpanded;

    #[test]
    fn what_a_shell_expands_is_found_and_names_that_look_alike_are_not() {
        for (path, part) in [
            ("~", "~"),
            ("~/runs", "~"),
            ("~alice/runs", "~"),
            ("$HOME/runs", "$HOME"),
            ("/scratch/${USER}/runs", "${USER}"),
            ("/scratch/$USER", "$USER"),
            ("$_x", "$_x"),
        ] {
            assert_eq!(unexpanded(path), Some(part), "{path}");
        }
        for path in [
            "",
            "a/~b",
            "./~",
            "./~/x",
            "a$HOME",
            "$",
            "/$/x",
            "$1/x",
            "prices/5$",
        ] {
            assert_eq!(unexpanded(path), None, "{path}");
        }
    }
}
