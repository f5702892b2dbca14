//! How Wan's pipeline cleans prompts (diffusers 0.42.1 `pipelines/wan/pipeline_wan.py`, `prompt_clean`).

use crate::entities::unescape;

/// A prompt as Wan's tokenizer gets it: HTML's references replaced, twice, and white space made single spaces.
///
/// Where Python has the package ftfy, diffusers calls its `fix_text` first, which repairs text that was decoded wrongly, and
/// makes curly quotes straight and full-width letters narrow. That is not done here.
pub fn clean_for_wan(prompt: &str) -> String {
    let text = unescape(&unescape(prompt));
    let words = text.split(is_space).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// What Python's `str.isspace` and `\s` take for white space: Unicode's and four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}
