//! The recogniser's characters and its classes: class 0 is the blank, class `i` the character `i - 1`.

use flow_registry::Refusal;
use std::collections::HashMap;

/// Classes of a recogniser.
#[derive(Debug)]
pub(super) struct Alphabet {
    /// The character of each class; that of the blank is empty.
    characters: Vec<String>,
    /// Classes of each letter, upper and lower case.
    of_letter: HashMap<char, Vec<usize>>,
    /// Classes that are no letter in a comparison: the blank and the space.
    no_letter: Vec<usize>,
}

impl Alphabet {
    /// The alphabet of a recogniser with so many classes, from its characters, one a line.
    ///
    /// A recogniser has a class for the blank, first, and in most cases one for the space, last, which PaddleOCR's dictionaries
    /// leave out (`use_space_char`).
    ///
    /// # Errors
    /// If the numbers do not fit.
    pub fn new(lines: &str, classes: usize) -> Result<Self, Refusal> {
        let lines = lines.strip_suffix('\n').unwrap_or(lines);
        let mut characters: Vec<String> = std::iter::once("")
            .chain(
                lines
                    .split('\n')
                    .map(|line| line.strip_suffix('\r').unwrap_or(line)),
            )
            .map(str::to_owned)
            .collect();
        let found = characters.len() - 1;
        if found + 2 == classes {
            characters.push(" ".to_owned());
        } else if found + 1 != classes {
            return Err(Refusal::new(
                format!(
                    "there are {found} characters, and the recogniser has {classes} classes: a blank, the characters, and at most a space"
                ),
                "it is the dictionary of another recogniser",
            ));
        }
        let mut of_letter: HashMap<char, Vec<usize>> = HashMap::new();
        let mut no_letter = vec![0];
        for (class, character) in characters.iter().enumerate().skip(1) {
            if character == " " {
                no_letter.push(class);
                continue;
            }
            let lower = character.to_lowercase();
            let mut letters = lower.chars();
            if let (Some(letter), None) = (letters.next(), letters.next()) {
                of_letter.entry(letter).or_default().push(class);
            }
        }
        Ok(Self {
            characters,
            of_letter,
            no_letter,
        })
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.characters.len()
    }

    /// The text of classes.
    pub fn text(&self, classes: &[usize]) -> String {
        classes
            .iter()
            .map(|class| self.characters[*class].as_str())
            .collect()
    }

    /// Those of the letters that no class is.
    pub fn unknown(&self, letters: &[char]) -> Vec<char> {
        let is_unknown = |letter: &&char| !self.of_letter.contains_key(letter);
        letters.iter().filter(is_unknown).copied().collect()
    }

    /// `[steps, 1 + letters]` from `[steps, classes]`: the probabilities of no letter, and of each letter, in order.
    pub fn of_letters(&self, probabilities: &[f32], letters: &[char]) -> Vec<f32> {
        let mut columns: Vec<&[usize]> = vec![&self.no_letter];
        columns.extend(
            letters
                .iter()
                .map(|letter| self.of_letter.get(letter).map_or(&[][..], Vec::as_slice)),
        );
        let sum = |step: &[f32], classes: &[usize]| -> f32 { classes.iter().map(|class| step[*class]).sum() };
        probabilities
            .chunks_exact(self.classes())
            .flat_map(|step| columns.iter().map(move |classes| sum(step, classes)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_added_where_the_recogniser_has_a_class_for_it() {
        for (lines, classes, last) in [("a\nB\n", 4, " "), ("a\r\nB\r\n", 3, "B"), ("a\nB", 3, "B")] {
            let alphabet = Alphabet::new(lines, classes).unwrap();
            assert_eq!(alphabet.classes(), classes);
            assert_eq!(alphabet.text(&[1, classes - 1]), format!("a{last}"));
        }
        for classes in [1, 2, 5] {
            let problem = Alphabet::new("a\nB\n", classes).unwrap_err().to_string();
            assert!(
                problem.contains("2 characters") && problem.contains(&classes.to_string()),
                "{problem}"
            );
        }
    }

    #[test]
    fn upper_and_lower_case_are_one_letter_and_a_space_is_none() {
        // Blank, A, b, a, B, a ligature of two letters in lower case, space.
        let alphabet = Alphabet::new("A\nb\na\nB\nİ\n", 7).unwrap();
        let step = [0.5, 0.125, 0.0625, 0.03125, 0.25, 0.0, 0.03125];
        assert_eq!(
            alphabet.of_letters(&[step, step].concat(), &['b', 'a']),
            [[0.53125, 0.3125, 0.15625]; 2].concat()
        );
        assert_eq!(alphabet.unknown(&['a', 'é', 'b', 'İ']), ['é', 'İ']);
    }
}
