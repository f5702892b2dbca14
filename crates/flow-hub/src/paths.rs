//! Paths of a repository's files, below a folder of this machine.

use std::path::PathBuf;

/// The longest path, in bytes.
const LONGEST: usize = 512;

/// The path that `path` of a repository has below a folder: names parted by `/`, none of which leads out of the folder on any
/// system. `None` for an absolute path, for `..`, `.` or an empty name, and for a backslash, a colon or a control character.
pub fn relative_path(path: &str) -> Option<PathBuf> {
    if path.len() > LONGEST {
        return None;
    }
    let is_name = |name: &str| {
        !matches!(name, "" | "." | "..") && !name.contains(['\\', ':']) && !name.chars().any(char::is_control)
    };
    let names: Vec<&str> = path.split('/').collect();
    names
        .iter()
        .all(|name| is_name(name))
        .then(|| names.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Component;

    #[test]
    fn files_of_a_pipeline_have_their_paths() {
        for path in [
            "model_index.json",
            "text_encoder_2/model.fp16.safetensors",
            "a/.b/c..d",
        ] {
            assert_eq!(relative_path(path), Some(PathBuf::from(path)), "{path}");
        }
    }

    #[test]
    fn a_path_that_could_lead_out_of_the_folder_is_refused() {
        for path in [
            "",
            "/etc/passwd",
            "..",
            "../a",
            "a/../../b",
            "a//b",
            "a/",
            "./a",
            "..\\a",
            "C:\\a",
            "C:a",
            "a\0b",
            "a\nb",
        ] {
            assert_eq!(relative_path(path), None, "{path:?}");
        }
        assert_eq!(relative_path(&"a".repeat(LONGEST + 1)), None);
    }

    proptest! {
        #[test]
        fn whatever_is_taken_is_made_of_plain_names(path in "[a./\\\\: -]{0,12}") {
            if let Some(taken) = relative_path(&path) {
                prop_assert!(taken.components().all(|part| matches!(part, Component::Normal(_))));
                prop_assert_eq!(taken.to_str(), Some(path.as_str()));
            }
        }
    }
}
