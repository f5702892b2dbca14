//! The prompts of the scenes: ids, texts, tokens, held-out combinations, and the parser.

use crate::error::PromptError;
use crate::parse;
use crate::prompt::{Colour, Position, Prompt, PromptSpec, Shape};
use crate::vocabulary::Vocabulary;

/// Count, colour, shape and position; prompts without a position end in a pad token.
pub(crate) const PROMPT_LENGTH: usize = 4;

const COUNT_WORDS: [&str; 3] = ["one", "two", "three"];
const COUNTS: u32 = COUNT_WORDS.len() as u32;
const COLOURS: u32 = Colour::ALL.len() as u32;
const SHAPES: u32 = Shape::ALL.len() as u32;
/// Prompts without a position come first.
const WITHOUT_POSITION: u32 = COUNTS * COLOURS * SHAPES;
/// Words that carry no content.
const FILLERS: [&str; 7] = ["on", "at", "in", "the", "side", "of", "and"];

/// The colour that reinforcement learning does not see, for each count (1 to 3) and shape (circle, square,
/// triangle).
///
/// Nine of the 54 combinations; every count, colour and shape still occurs in many others, and so does every pair
/// of them.
/// A held-out single object is held out with every position.
pub const HELD_OUT_COLOUR: [[Colour; 3]; 3] = [
    [Colour::Red, Colour::Green, Colour::Blue],
    [Colour::Yellow, Colour::Magenta, Colour::Cyan],
    [Colour::Blue, Colour::Yellow, Colour::Red],
];

pub(crate) fn is_held_out(count: u8, colour: Colour, shape: Shape) -> bool {
    let row = usize::from(count)
        .checked_sub(1)
        .and_then(|row| HELD_OUT_COLOUR.get(row));
    row.is_some_and(|row| row[shape as usize] == colour)
}

/// The content of a prompt; the count is 1 to 3, and a position goes with a count of 1 only.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SceneSpec {
    pub count: u8,
    pub colour: Colour,
    pub shape: Shape,
    pub position: Option<Position>,
}

impl SceneSpec {
    pub(crate) fn prompt_id(&self) -> u32 {
        let kind = self.colour as u32 * SHAPES + self.shape as u32;
        match self.position {
            None => (u32::from(self.count) - 1) * COLOURS * SHAPES + kind,
            Some(position) => WITHOUT_POSITION + position as u32 * COLOURS * SHAPES + kind,
        }
    }
}

pub(crate) fn vocabulary() -> Vocabulary {
    let content = Colour::ALL
        .map(Colour::word)
        .into_iter()
        .chain(Shape::ALL.map(Shape::word));
    Vocabulary::new(
        COUNT_WORDS
            .into_iter()
            .chain(content)
            .chain(Position::ALL.map(Position::word)),
    )
}

/// Every prompt in the order of the ids.
pub(crate) fn all(vocabulary: &Vocabulary) -> Vec<Prompt> {
    let places = (1..=COUNTS as u8).map(|count| (count, None));
    let places = places.chain(Position::ALL.map(|position| (1, Some(position))));
    let mut prompts = Vec::new();
    for (count, position) in places {
        for colour in Colour::ALL {
            for shape in Shape::ALL {
                let spec = SceneSpec {
                    count,
                    colour,
                    shape,
                    position,
                };
                let mut words = vec![COUNT_WORDS[usize::from(count) - 1], colour.word(), shape.word()];
                words.extend(position.map(Position::word));
                prompts.push(Prompt {
                    id: spec.prompt_id(),
                    text: text(&spec),
                    tokens: vocabulary.encode(&words, PROMPT_LENGTH),
                    spec: PromptSpec::Shapes {
                        count,
                        colour,
                        shape,
                        position,
                    },
                    metadata: serde_json::Map::new(),
                });
            }
        }
    }
    prompts
}

fn text(spec: &SceneSpec) -> String {
    let count = COUNT_WORDS[usize::from(spec.count) - 1];
    let plural = if spec.count == 1 { "" } else { "s" };
    let place = match spec.position {
        None => "",
        Some(Position::Left) => " on the left",
        Some(Position::Right) => " on the right",
        Some(Position::Top) => " at the top",
        Some(Position::Bottom) => " at the bottom",
    };
    format!("{count} {} {}{plural}{place}", spec.colour, spec.shape)
}

/// Reads a prompt in any order of words.
pub(crate) fn parse(text: &str) -> Result<SceneSpec, PromptError> {
    let (mut count, mut colour, mut shape, mut position) = (None, None, None, None);
    for word in parse::words(text) {
        if FILLERS.contains(&word.as_str()) {
            continue;
        }
        let singular = word.strip_suffix('s').unwrap_or(&word);
        if let Some(value) = count_of(&word) {
            parse::set_once(text, "the count", &mut count, value, &word)?;
        } else if let Some(value) = Colour::ALL.into_iter().find(|c| c.word() == word) {
            parse::set_once(text, "the colour", &mut colour, value, &word)?;
        } else if let Some(value) = Shape::ALL.into_iter().find(|s| s.word() == singular) {
            parse::set_once(text, "the shape", &mut shape, value, &word)?;
        } else if let Some(value) = Position::ALL.into_iter().find(|p| p.word() == word) {
            parse::set_once(text, "the position", &mut position, value, &word)?;
        } else {
            let known = vocabulary().words()[2..].to_vec();
            return Err(parse::unknown_word(text, &word, known));
        }
    }
    let mut lacking = Vec::new();
    if count.is_none() {
        lacking.push(format!("a count ({})", parse::choices(&COUNT_WORDS)));
    }
    if colour.is_none() {
        lacking.push(format!(
            "a colour ({})",
            parse::choices(&Colour::ALL.map(Colour::word))
        ));
    }
    if shape.is_none() {
        lacking.push(format!(
            "a shape ({})",
            parse::choices(&Shape::ALL.map(Shape::word))
        ));
    }
    let (Some((count, count_word)), Some((colour, _)), Some((shape, _))) = (count, colour, shape) else {
        let example = "\"three red circles\" or \"one blue square on the left\"";
        return Err(parse::missing(text, &lacking, example));
    };
    if count != 1
        && let Some((_, position_word)) = position
    {
        return Err(PromptError::Combination {
            text: text.to_owned(),
            problem: format!(
                "a position (\"{position_word}\") goes with one object, and the count is \"{count_word}\"; \
                 leave the position out or ask for one"
            ),
        });
    }
    Ok(SceneSpec {
        count,
        colour,
        shape,
        position: position.map(|(position, _)| position),
    })
}

fn count_of(word: &str) -> Option<u8> {
    match word {
        "a" | "one" | "1" => Some(1),
        "two" | "2" => Some(2),
        "three" | "3" => Some(3),
        _ => None,
    }
}
