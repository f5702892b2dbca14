//! Rules on options together with others, or with what the run does.
//!
//! The table names the rules of each option, so they appear in its documentation too.

use crate::{Context, Value, find};
use flow_config::Severity;
use std::collections::BTreeMap;
use std::fmt;

/// A rule: where its condition holds, it finds something.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Stable code.
    pub code: &'static str,
    /// How much a finding matters.
    pub severity: Severity,
    /// What is found; `{option}` and `{value}` stand for the option and its value.
    pub message: &'static str,
    /// How to mend it.
    pub help: &'static str,
    /// The rule in a few words, for the documentation.
    pub summary: &'static str,
    /// Whether the rule finds something at the option of this path, which is among the facts.
    pub holds: fn(&Facts<'_>, &str) -> bool,
}

impl fmt::Debug for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Rule").field(&self.code).finish()
    }
}

/// What a rule sees: the options that were given and are well-formed, and what the run does.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Values by path.
    pub values: &'a BTreeMap<&'static str, Value>,
    /// Device, build, accelerators, shapes.
    pub context: &'a Context,
}

impl Facts<'_> {
    fn given(&self, path: &str) -> bool {
        self.values.contains_key(path)
    }

    /// The word in force: the one given, or the default.
    fn is_word(&self, path: &str, word: &str) -> bool {
        match self.values.get(path) {
            Some(value) => value.to_json() == *word,
            None => find(path).is_some_and(|spec| spec.default.to_json() == *word),
        }
    }

    fn is(&self, path: &str, wanted: bool) -> bool {
        match self.values.get(path) {
            Some(value) => value.to_json() == wanted,
            None => find(path).is_some_and(|spec| spec.default.to_json() == wanted),
        }
    }

    /// Whether the logger of this option has somewhere to write to.
    fn has_sink(&self, logger: &str) -> bool {
        let given = |sink: &str| self.given(&format!("{logger}.{sink}"));
        given("file")
            || given("log")
            || ["stdout", "stderr"]
                .iter()
                .any(|sink| self.is(&format!("{logger}.{sink}"), true))
    }
}

/// `cubecl.memory.logger` of `cubecl.memory.logger.file`.
fn logger_of(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(logger, _)| logger)
}

/// `StreamPolicy::PerTask` without CubeCL's feature `tokio`, which no build of ours has.
pub(crate) const PER_TASK_STREAMS: Rule = Rule {
    code: "runtime::per-task-streams",
    severity: Severity::Warning,
    message: "`{option}` = {value} acts like \"per-thread\" here: flow-train runs no asynchronous tasks",
    help: "Remove it, or set it to \"single\".",
    summary: "warning for \"per-task\", which acts like \"per-thread\" here",
    holds: |facts, path| facts.is_word(path, "per-task"),
};

/// A single stream is number 0 of however many.
pub(crate) const SINGLE_STREAM: Rule = Rule {
    code: "runtime::single-stream",
    severity: Severity::Warning,
    message: "`{option}` does nothing with `cubecl.streaming.policy = \"single\"`: one stream takes all the work",
    help: "Remove one of the two.",
    summary: "warning with policy = \"single\", which uses one stream",
    holds: |facts, _| facts.is_word("cubecl.streaming.policy", "single"),
};

/// `PersistentMemory::Enforced` warns of it in its documentation.
pub(crate) const ENFORCED_MEMORY: Rule = Rule {
    code: "runtime::enforced-memory-variable-shapes",
    severity: Severity::Warning,
    message: "`{option}` = {value} keeps one buffer for each size that occurs, and the shapes of this run vary, so \
              memory may run out",
    help: "Take \"size-match\" or \"enabled\", or make the shapes constant.",
    summary: "warning for \"enforced\" with variable shapes",
    holds: |facts, path| facts.is_word(path, "enforced") && facts.context.variable_shapes,
};

/// `RecordLevel::Off` writes no session.
pub(crate) const NO_RECORDS: Rule = Rule {
    code: "runtime::no-records",
    severity: Severity::Warning,
    message: "`{option}` does nothing with `cubecl.environment.records.level = \"off\"`",
    help: "Remove one of the two.",
    summary: "warning with level = \"off\", which keeps no sessions",
    holds: |facts, _| facts.is_word("cubecl.environment.records.level", "off"),
};

/// A level says how much, a sink says where to; the default is nowhere.
pub(crate) const LOGGER_WITHOUT_SINK: Rule = Rule {
    code: "runtime::logger-without-sink",
    severity: Severity::Warning,
    message: "`{option}` = {value} writes nowhere",
    help: "Give the same logger `file`, `stdout = true`, `stderr = true` or `log`.",
    summary: "warning without file, stdout, stderr or log",
    holds: |facts, path| !facts.is_word(path, "disabled") && !facts.has_sink(logger_of(path)),
};

/// The other way round.
pub(crate) const SINK_WITHOUT_LEVEL: Rule = Rule {
    code: "runtime::sink-without-level",
    severity: Severity::Warning,
    message: "`{option}` has nothing to write: the `level` of this logger is \"disabled\"",
    help: "Give the same logger a `level`.",
    summary: "warning if level is \"disabled\"",
    holds: |facts, path| {
        let logger = logger_of(path);
        facts.is_word(&format!("{logger}.level"), "disabled") && !facts.is(path, false)
    },
};

/// `append` is of files.
pub(crate) const APPEND_WITHOUT_FILE: Rule = Rule {
    code: "runtime::append-without-file",
    severity: Severity::Warning,
    message: "`{option}` does nothing without `file`",
    help: "Give the same logger a `file`, or remove it.",
    summary: "warning without file",
    holds: |facts, path| !facts.given(&format!("{}.file", logger_of(path))),
};

/// Rules on what the run does, whatever its options. Their path is empty.
pub const CONTEXT_RULES: &[Rule] = &[Rule {
    code: "runtime::capture-variable-shapes",
    severity: Severity::Warning,
    message: "the accelerator `graph_capture` replays calls of one batch size, and those of this run vary (the last one of an \
              evaluation is smaller), so it records each of them, which takes time and memory",
    help: "Make `evaluation.prompts` times `evaluation.images_per_prompt` a multiple of `sampling.micro_batch`.",
    summary: "graph capture with variable shapes",
    holds: |facts, _| facts.context.variable_shapes && facts.context.has_accelerator("graph_capture"),
}];
