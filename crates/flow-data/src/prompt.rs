//! Prompts: what an image should show, as a text, as tokens and as data.

use serde_json::{Map, Value};
use std::fmt;

/// One prompt of a data set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Prompt {
    /// Stable id: the position in [`crate::Dataset::prompts`].
    /// Groups and per-prompt statistics are keyed by it.
    pub id: u32,
    /// What a person reads and writes.
    pub text: String,
    /// Token ids of [`crate::TokenizedPrompts::prompt_length`] entries, filled up with [`crate::PAD_TOKEN`]; none of free text.
    pub tokens: Vec<u32>,
    /// The same content as data, which rewards read.
    pub spec: PromptSpec,
    /// What else a file of prompts says of it, which rewards read, too.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl Prompt {
    /// A prompt of free text.
    pub fn free(id: u32, text: impl Into<String>) -> Self {
        Self {
            id,
            text: text.into(),
            tokens: Vec::new(),
            spec: PromptSpec::Text,
            metadata: Map::new(),
        }
    }
}

/// What a prompt asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PromptSpec {
    /// No more than its text says.
    Text,
    /// A handwritten digit.
    Digit {
        /// 0 to 9.
        digit: u8,
        /// How much ink.
        weight: Weight,
    },
    /// A scene of equal objects.
    Shapes {
        /// Number of objects, 1 to 3.
        count: u8,
        /// Colour of every object.
        colour: Colour,
        /// Shape of every object.
        shape: Shape,
        /// Where the object is, for a count of 1 only.
        position: Option<Position>,
    },
}

/// Defines an enum of words: the variants, their spelling, and the list of all of them in a fixed order.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$variant_meta])* $variant),+
        }

        impl $name {
            /// Every value, in the order of the discriminants.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word as it stands in a prompt.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

words! {
    /// How much ink a digit has, as the tercile of the total ink within its class.
    Weight {
        /// The third with the least ink.
        Thin = "thin",
        /// The middle third.
        Medium = "medium",
        /// The third with the most ink.
        Bold = "bold",
    }
}

words! {
    /// The colour of an object: the six corners of the RGB cube between black and white.
    Colour {
        /// Red.
        Red = "red",
        /// Green.
        Green = "green",
        /// Blue.
        Blue = "blue",
        /// Red and green.
        Yellow = "yellow",
        /// Red and blue.
        Magenta = "magenta",
        /// Green and blue.
        Cyan = "cyan",
    }
}

words! {
    /// The outline of an object.
    Shape {
        /// A disc.
        Circle = "circle",
        /// A square with level sides.
        Square = "square",
        /// An equilateral triangle with its tip up.
        Triangle = "triangle",
    }
}

words! {
    /// Where a single object is, relative to the middle of the image.
    Position {
        /// On the left.
        Left = "left",
        /// On the right.
        Right = "right",
        /// At the top.
        Top = "top",
        /// At the bottom.
        Bottom = "bottom",
    }
}

impl Colour {
    /// The colour that the renderer paints, as red, green, blue in [-1, 1].
    ///
    /// A channel that is on has 0.8 and one that is off has -0.8, the value of the background: away from the ends
    /// of the range, where clamping would hide what a model generates.
    pub fn rgb(self) -> [f32; 3] {
        let on = match self {
            Self::Red => [true, false, false],
            Self::Green => [false, true, false],
            Self::Blue => [false, false, true],
            Self::Yellow => [true, true, false],
            Self::Magenta => [true, false, true],
            Self::Cyan => [false, true, true],
        };
        on.map(|on| if on { 0.8 } else { -0.8 })
    }
}
