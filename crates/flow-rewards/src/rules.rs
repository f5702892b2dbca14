//! Rules that several rewards have.

use flow_config::Rules;
use flow_config::codes::RULE_REWARD_DATA;

/// The reward `name` at `path` scores what prompts of the data set `wanted` ask for.
pub(crate) fn of_data(wanted: &str, name: &str, rules: &mut Rules<'_>, path: &str) {
    if rules.config().data.kind == wanted {
        return;
    }
    let message = format!("the reward `{name}` can only score images of `{wanted}`");
    let kind = format!("{path}.kind");
    rules
        .error(RULE_REWARD_DATA, &[&kind, "data.kind", "data"], message)
        .help(format!(
            "choose another reward, or set `data.kind = \"{wanted}\"`"
        ));
}
