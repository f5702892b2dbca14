//! Questions with placeholders: `{prompt}` and `{metadata.KEY}`; `{{` and `}}` are the braces themselves.

use flow_data::Prompt;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Prompt,
    Metadata(String),
}

/// A text with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template(Vec<Part>);

impl Template {
    /// The template of `text`.
    ///
    /// # Errors
    /// A placeholder that there is not, or a brace without its other half, as a sentence.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            plain.push_str(before);
            if let Some(behind) = from.strip_prefix("{{") {
                plain.push('{');
                rest = behind;
            } else if let Some(behind) = from.strip_prefix("}}") {
                plain.push('}');
                rest = behind;
            } else if from.starts_with('}') {
                return Err("there is a `}` without its `{`; write `}}` for the brace itself".to_owned());
            } else {
                let Some((name, behind)) = from[1..].split_once('}') else {
                    return Err("there is a `{` without its `}`; write `{{` for the brace itself".to_owned());
                };
                parts.push(Part::Text(std::mem::take(&mut plain)));
                parts.push(placeholder(name)?);
                rest = behind;
            }
        }
        plain.push_str(rest);
        parts.push(Part::Text(plain));
        Ok(Self(parts))
    }

    /// The text for a prompt. What is put in is not looked at again, whatever braces it has.
    ///
    /// # Errors
    /// A key that the prompt's metadata does not have, as a sentence.
    pub(super) fn fill(&self, prompt: &Prompt) -> Result<String, String> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Prompt => text.push_str(&prompt.text),
                Part::Metadata(key) => match prompt.metadata.get(key) {
                    Some(Value::String(value)) => text.push_str(value),
                    Some(value) => text.push_str(&value.to_string()),
                    None => {
                        return Err(format!(
                            "its metadata has no `{key}`, which the question asks for"
                        ));
                    }
                },
            }
        }
        Ok(text)
    }
}

fn placeholder(name: &str) -> Result<Part, String> {
    match name.strip_prefix("metadata.") {
        _ if name == "prompt" => Ok(Part::Prompt),
        Some(key) if !key.is_empty() => Ok(Part::Metadata(key.to_owned())),
        _ => Err(format!(
            "there is no placeholder `{{{name}}}`; allowed are `{{prompt}}` and `{{metadata.KEY}}`, and `{{{{` for the brace itself"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn prompt() -> Prompt {
        let mut prompt = Prompt::free(0, "a {prompt} of \"{metadata.count}\"".to_owned());
        prompt.metadata.insert("count".into(), json!(3));
        prompt.metadata.insert("style".into(), json!("oil {paint}"));
        prompt.metadata.insert("tags".into(), json!(["a", 1]));
        prompt
    }

    #[test]
    fn placeholders_are_filled_once() {
        for (template, expected) in [
            ("plain", "plain"),
            ("", ""),
            ("«{prompt}»", "«a {prompt} of \"{metadata.count}\"»"),
            ("{metadata.count} in {metadata.style}", "3 in oil {paint}"),
            (
                "{metadata.tags}{{{prompt}",
                "[\"a\",1]{a {prompt} of \"{metadata.count}\"",
            ),
            ("{{\"score\": N}}", "{\"score\": N}"),
        ] {
            let template = Template::new(template).unwrap();
            assert_eq!(template.fill(&prompt()).unwrap(), expected);
        }
    }

    #[test]
    fn other_placeholders_and_missing_keys_are_named() {
        for (template, words) in [
            ("{promt}", "`{promt}`"),
            ("{metadata.}", "`{metadata.}`"),
            ("{}", "`{}`"),
            ("a { b", "without its `}`"),
            ("a } b", "without its `{`"),
        ] {
            let problem = Template::new(template).unwrap_err();
            assert!(problem.contains(words), "{template}: {problem}");
        }
        let problem = Template::new("{metadata.colour}").unwrap().fill(&prompt());
        assert!(problem.unwrap_err().contains("no `colour`"));
    }
}
