//! Which texts of a file are held out for evaluation: what its settings say, and where they contradict each other.

use crate::error::DataError;
use crate::prompt_list::{PromptList, TestShare};
use flow_config::Rules;
use flow_config::codes::RULE_UNUSED;
use std::collections::HashSet;

/// Share of the different texts that is held out where nothing is said.
pub(crate) const fn test_fraction() -> f64 {
    0.1
}

/// How much of a list is held out, as `data.test_fraction`, `data.test_count` and `data.seed` say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldOut {
    /// Share of the different texts.
    pub fraction: f64,
    /// Number of texts, instead of a share.
    pub count: Option<usize>,
    /// Decides, with the texts, which ones.
    pub seed: u64,
}

impl HeldOut {
    /// The texts of `list` that are trained on and those that are held out, if there are some; `noun` is what the file is of.
    ///
    /// # Errors
    /// [`DataError::Pictures`] for a split that leaves nothing on one side.
    pub fn split(self, list: &PromptList, noun: &str) -> Result<Option<(PromptList, PromptList)>, DataError> {
        let texts = list.entries().iter().map(|entry| entry.text.as_str());
        let distinct = texts.collect::<HashSet<&str>>().len();
        let count = self.count.unwrap_or((distinct as f64 * self.fraction) as usize);
        if count == 0 {
            return Ok(None);
        }
        let split = list.clone().split(TestShare::Count(count), self.seed);
        let split = split.map_err(|error| DataError::Pictures {
            problem: format!(
                "{error}; name {noun} of evaluation with `data.test_path`, or change `data.test_fraction` or `data.test_count`"
            ),
        })?;
        Ok(Some(split))
    }
}

/// Names `test_count` below `path` where `test_path` is `given`, too; `noun` is what the file is of.
pub(crate) fn check_named_once(given: (bool, bool), noun: &str, rules: &mut Rules<'_>, path: &str) {
    if given == (true, true) {
        let (file, count) = (format!("{path}.test_path"), format!("{path}.test_count"));
        rules
            .warning(
                RULE_UNUSED,
                &[&count, &file],
                format!("`{file}` names the {noun} of evaluation, so `{count}` is not read"),
            )
            .help("remove one of them");
    }
}
