//! Sizes of pictures: which of them a prompt has, and what of a run depends on it.
//!
//! Weights have no size, and neither have prompts, noise addresses, rewards and advantages. The model's positions, the noise levels of
//! a shift by tokens, and the decoder have one. All pictures of a group are of one size, and so are those of a micro-batch.

use crate::decoder::ImageDecoder;
use crate::error::TrainError;
use crate::policy::Policy;
use crate::rollout::Sampler;
use crate::scheduler::Schedule;
use flow_data::{FREE_PROMPT_ID, Prompt};
use flow_pipeline::Size;
use serde_json::Value;

/// The keys of a prompt's metadata that say its size.
const KEYS: [&str; 2] = ["width", "height"];

/// What depends on the size of pictures, for one that is not the run's own.
#[derive(Clone, Debug)]
pub struct AtSize {
    /// The model for that size, under the guidance of whoever samples.
    pub policy: Policy,
    /// The schedule, whose shift may depend on the number of tokens.
    pub schedule: Schedule,
    /// From latents to images.
    pub decoder: ImageDecoder,
}

/// The sampler and the schedule for number `size` among the sizes of a run: its own, or those of `others`.
pub(crate) fn at_size<'a>(
    size: usize,
    (sampler, schedule): (&Sampler, &'a Schedule),
    others: &'a [AtSize],
) -> (Sampler, &'a Schedule) {
    match size.checked_sub(1).and_then(|other| others.get(other)) {
        None => (sampler.clone(), schedule),
        Some(at) => {
            let sampler = Sampler {
                policy: at.policy.clone(),
                size,
                ..sampler.clone()
            };
            (sampler, &at.schedule)
        }
    }
}

/// The sizes of a run, its own first, and which of them a prompt has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptSizes {
    sizes: Vec<Size>,
    /// Numbers of the sizes that prompts take in turn.
    cycle: Vec<usize>,
    /// Whether prompts may bring their own.
    of_prompts: bool,
}

impl PromptSizes {
    /// One size for all prompts.
    pub fn single(own: Size) -> Self {
        Self {
            sizes: vec![own],
            cycle: Vec::new(),
            of_prompts: false,
        }
    }

    /// `listed` are taken in turn, prompt `i` taking number `i` modulo their number, `own` if there are none; with `of_prompts`, a
    /// prompt whose metadata have `width` and `height` has that size. `prompts` are all that may come.
    ///
    /// # Errors
    /// [`TrainError::Setting`] for a prompt with only one of the two, or with one that is no number of pixels.
    pub fn new<'a>(
        own: Size,
        listed: &[[usize; 2]],
        of_prompts: bool,
        prompts: impl Iterator<Item = &'a Prompt>,
    ) -> Result<Self, TrainError> {
        let mut all = Self {
            of_prompts,
            ..Self::single(own)
        };
        for [width, height] in listed {
            let number = all.number(Size {
                width: *width,
                height: *height,
                ..own
            });
            all.cycle.push(number);
        }
        if of_prompts {
            for prompt in prompts {
                if let Some([width, height]) = size_of(prompt)? {
                    all.number(Size { width, height, ..own });
                }
            }
        }
        Ok(all)
    }

    /// The number of a size, which is added if it is new.
    fn number(&mut self, size: Size) -> usize {
        let known = self.sizes.iter().position(|known| *known == size);
        known.unwrap_or_else(|| {
            self.sizes.push(size);
            self.sizes.len() - 1
        })
    }

    /// The sizes, the run's own first.
    pub fn sizes(&self) -> &[Size] {
        &self.sizes
    }

    /// Number of a prompt's size; of one that is not known the run's own.
    pub fn of(&self, prompt: &Prompt) -> usize {
        if self.of_prompts
            && let Ok(Some([width, height])) = size_of(prompt)
        {
            let is_it = |size: &Size| (size.width, size.height) == (width, height);
            return self.sizes.iter().position(is_it).unwrap_or(0);
        }
        match self.cycle.len() {
            count if count > 0 && prompt.id != FREE_PROMPT_ID => self.cycle[prompt.id as usize % count],
            _ => 0,
        }
    }

    /// Places of prompts in batches of at most `most`, each of one size; places of one size in their order, sizes in the order of their
    /// first prompts.
    pub fn batches<'a>(
        &self,
        prompts: impl Iterator<Item = &'a Prompt>,
        most: usize,
    ) -> Vec<(usize, Vec<usize>)> {
        let mut by_size: Vec<(usize, Vec<usize>)> = Vec::new();
        for (place, prompt) in prompts.enumerate() {
            let size = self.of(prompt);
            match by_size.iter_mut().find(|(known, _)| *known == size) {
                Some((_, places)) => places.push(place),
                None => by_size.push((size, vec![place])),
            }
        }
        let in_batches = |(size, places): (usize, Vec<usize>)| -> Vec<(usize, Vec<usize>)> {
            let chunks = places.chunks(most.max(1));
            chunks.map(|places| (size, places.to_vec())).collect()
        };
        by_size.into_iter().flat_map(in_batches).collect()
    }
}

/// The size that a prompt brings, if it brings one: numbers, or texts of a table.
fn size_of(prompt: &Prompt) -> Result<Option<[usize; 2]>, TrainError> {
    let found = KEYS.map(|key| prompt.metadata.get(key));
    let wrong = |problem: String| {
        TrainError::setting(format!("the prompt \"{}\": {problem}", prompt.text))
            .with_help("give it `width` and `height` in pixels, or neither")
    };
    let pixels = |value: &Value| match value {
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_u64().and_then(|number| usize::try_from(number).ok()),
    };
    // A cell of a table that nobody filled in is empty, too.
    let is_there =
        |value: &&Value| !value.is_null() && value.as_str().is_none_or(|text| !text.trim().is_empty());
    match found.map(|value| value.filter(is_there)) {
        [None, None] => Ok(None),
        [Some(width), Some(height)] => match (pixels(width), pixels(height)) {
            (Some(width), Some(height)) => Ok(Some([width, height])),
            _ => Err(wrong(format!("its size is {width} by {height}"))),
        },
        _ => Err(wrong("it has one side of its size".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    fn prompt(id: u32, metadata: Value) -> Prompt {
        let metadata: Map<String, Value> = metadata.as_object().cloned().unwrap_or_default();
        Prompt {
            metadata,
            ..Prompt::free(id, format!("prompt {id}"))
        }
    }

    const OWN: Size = Size::picture(48, 64);

    #[test]
    fn listed_sizes_are_taken_in_turn_and_prompts_may_bring_their_own() {
        let prompts = [
            prompt(0, json!({})),
            prompt(1, json!({ "width": 32, "height": 96 })),
            prompt(2, json!({ "width": "64", "height": " 48 " })),
            prompt(3, json!({ "width": "", "height": null })),
        ];
        let of = |listed: &[[usize; 2]], of_prompts| {
            let sizes = PromptSizes::new(OWN, listed, of_prompts, prompts.iter()).expect("right");
            let found = prompts.iter().map(|prompt| sizes.sizes()[sizes.of(prompt)]);
            found.map(|size| (size.width, size.height)).collect::<Vec<_>>()
        };
        let own = (48, 64);
        assert_eq!(of(&[], false), [own; 4]);
        assert_eq!(of(&[], true), [own, (32, 96), (64, 48), own]);
        let listed = [[64, 48], [48, 64], [80, 32]];
        assert_eq!(of(&listed, false), [(64, 48), own, (80, 32), (64, 48)]);
        assert_eq!(of(&listed, true), [(64, 48), (32, 96), (64, 48), (64, 48)]);
        let unknown = PromptSizes::new(OWN, &[], true, prompts.iter()).expect("right");
        assert_eq!(unknown.of(&prompt(9, json!({ "width": 16, "height": 16 }))), 0);
        // A text that the data do not list has no turn.
        let turns = PromptSizes::new(OWN, &[[64, 48]], false, prompts.iter()).expect("right");
        assert_eq!(turns.of(&prompt(FREE_PROMPT_ID, json!({}))), 0);
    }

    #[test]
    fn half_a_size_and_what_is_no_number_are_refused_with_the_prompt() {
        for (metadata, wanted) in [
            (json!({ "width": 32 }), "one side"),
            (json!({ "width": 32, "height": "tall" }), "32 by \"tall\""),
            (json!({ "width": 32, "height": -3 }), "32 by -3"),
        ] {
            let prompts = [prompt(7, metadata)];
            let refused = PromptSizes::new(OWN, &[], true, prompts.iter()).expect_err("refused");
            let said = refused.to_string();
            assert!(said.contains("prompt 7") && said.contains(wanted), "{said}");
        }
    }

    #[test]
    fn batches_have_one_size_and_one_size_has_consecutive_batches() {
        let prompts: Vec<Prompt> = (0..7).map(|id| prompt(id, json!({}))).collect();
        let single = PromptSizes::single(OWN);
        assert_eq!(
            single.batches(prompts.iter(), 3),
            [(0, vec![0, 1, 2]), (0, vec![3, 4, 5]), (0, vec![6])]
        );
        let two = PromptSizes::new(OWN, &[[64, 48], [48, 64]], false, prompts.iter()).expect("right");
        assert_eq!(
            two.batches(prompts.iter(), 3),
            [(1, vec![0, 2, 4]), (1, vec![6]), (0, vec![1, 3, 5])]
        );
    }
}
