//! Encoded prompts, for models that read encoded text: made up of words, or read from a file.
//!
//! A table of vectors lies on the device; the text of a prompt is a list of its rows. So a batch is one gather, whatever the
//! length of the text, and the same prompt has the same bits in every batch.

use burn::tensor::Tensor;
use flow_core::device::ComputeDevice;
use flow_core::model::{Condition, TextWidth};
use flow_core::rng::{Purpose, Stream};
use flow_data::{Dataset, PAD_TOKEN, Prompt};
use flow_models::weights::{Parsed, parse};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Encoded text of every prompt of a data set, and of the empty one.
#[derive(Clone, Debug)]
pub struct EncodedText {
    /// Number of a prompt by its text. The empty one has the number behind them all.
    numbers: Arc<HashMap<String, usize>>,
    /// Rows of `table_RC` that are the text of each prompt, equally many.
    rows: Arc<Vec<Vec<i64>>>,
    table_rc: Tensor<2>,
    /// Tokens of each prompt's text, where those behind them are padding that nothing attends to.
    lengths: Option<Arc<Vec<usize>>>,
    /// Pooled text of each prompt.
    pooled_nd: Option<Tensor<2>>,
}

/// Number of each prompt by its text.
fn numbers(dataset: &dyn Dataset) -> Arc<HashMap<String, usize>> {
    let texts = dataset.prompts().iter().map(|prompt| prompt.text.clone());
    Arc::new(texts.zip(0..).collect())
}

impl EncodedText {
    /// Every word a vector of standard normal numbers, a function of `seed` and the word's token alone; padding is zeros up to
    /// `tokens`. Pooled text is the sum of other such vectors.
    ///
    /// # Errors
    /// A message if a prompt has more than `tokens` tokens.
    pub fn words(
        dataset: &dyn Dataset,
        width: TextWidth,
        tokens: usize,
        seed: u64,
        device: &ComputeDevice,
    ) -> Result<Self, String> {
        let words_of = dataset.tokenized().ok_or_else(|| {
            format!(
                "`text.kind = \"words\"` is for data with a small vocabulary, and the prompts of `{}` are free text; set `model.path` to \
                 a diffusers folder, whose encoders read any text, or `text.kind = \"file\"`",
                dataset.name()
            )
        })?;
        let length = words_of.prompt_length();
        if tokens < length {
            return Err(format!(
                "`text.tokens` is {tokens}, and prompts of `{}` have {length} tokens; set `text.tokens = {length}` or more",
                dataset.name()
            ));
        }
        let words = words_of.vocabulary().len();
        let stream = Stream::new(seed, Purpose::Words);
        let vector = |word: usize, of: u32, channels: usize| {
            let mut values = vec![0.0f32; channels];
            if word != PAD_TOKEN as usize {
                stream.at(word as u64, of).fill_normal(&mut values);
            }
            values
        };
        let table = (0..words).flat_map(|word| vector(word, 0, width.channels));
        let prompts = dataset.prompts().iter().map(|prompt| prompt.tokens.clone());
        let prompts: Vec<Vec<u32>> = prompts.chain([words_of.null_tokens()]).collect();
        let padding = vec![i64::from(PAD_TOKEN); tokens - length];
        let rows = prompts.iter().map(|prompt| {
            let words = prompt.iter().map(|token| i64::from(*token));
            words.chain(padding.iter().copied()).collect()
        });
        let pooled = |channels: usize| {
            let vectors: Vec<Vec<f32>> = (0..words).map(|word| vector(word, 1, channels)).collect();
            let sum = |prompt: &Vec<u32>| -> Vec<f32> {
                let of = |channel| prompt.iter().map(|token| vectors[*token as usize][channel]).sum();
                (0..channels).map(of).collect()
            };
            prompts.iter().flat_map(sum).collect::<Vec<f32>>()
        };
        let (table, count) = (table.collect(), prompts.len());
        Ok(device.with_persistent_allocation(|| Self {
            numbers: numbers(dataset),
            rows: Arc::new(rows.collect()),
            table_rc: device.tensor(table, [words, width.channels]),
            lengths: None,
            pooled_nd: width
                .pooled
                .map(|channels| device.tensor(pooled(channels), [count, channels])),
        }))
    }

    /// Prompts that were encoded beforehand, in the order of the data set's ids, from a safetensors file with the names of
    /// diffusers' pipelines: `prompt_embeds` `[N, T, C]`, `negative_prompt_embeds` `[1, T, C]`, and for a model that reads pooled
    /// text `pooled_prompt_embeds` `[N, D]` and `negative_pooled_prompt_embeds` `[1, D]`. `prompt_embeds_mask` `[N, T]` and
    /// `negative_prompt_embeds_mask` `[1, T]`, of any type, are 0 where there is padding, which is behind each text; without a mask
    /// there is none.
    ///
    /// # Errors
    /// A message that names the file and everything in it that does not fit.
    pub fn file(
        dataset: &dyn Dataset,
        width: TextWidth,
        path: &Path,
        device: &ComputeDevice,
    ) -> Result<Self, String> {
        let about = |problem: String| format!("`{}`, which `text.path` names: {problem}", path.display());
        let bytes = std::fs::read(path).map_err(|error| about(error.to_string()))?;
        let file = File(parse(&bytes).map_err(about)?);
        let count = dataset.prompts().len();
        let mut problems = Vec::new();
        let mut take = |name: &str, shape: &[Option<usize>]| match file.take(name, shape) {
            Ok(found) => Some(found),
            Err(problem) => {
                problems.push(problem);
                None
            }
        };
        let text = take("prompt_embeds", &[Some(count), None, Some(width.channels)]);
        let tokens = text.as_ref().map(|(shape, _)| shape[1]);
        let negative = take("negative_prompt_embeds", &[Some(1), tokens, Some(width.channels)]);
        let pooled = width.pooled.map(|channels| {
            let pooled = take("pooled_prompt_embeds", &[Some(count), Some(channels)]);
            let negative = take("negative_pooled_prompt_embeds", &[Some(1), Some(channels)]);
            (channels, pooled.zip(negative))
        });
        let mut masked = |name: &str, prompts: usize| {
            let lengths = file.lengths(name, [prompts, tokens?]);
            lengths.unwrap_or_else(|problem| {
                problems.push(problem);
                None
            })
        };
        let lengths = [
            (count, masked("prompt_embeds_mask", count)),
            (1, masked("negative_prompt_embeds_mask", 1)),
        ];
        if let Some(problem) = file.other_prompts(dataset) {
            problems.push(problem);
        }
        let (Some((shape, text)), Some((_, negative)), true) = (text, negative, problems.is_empty()) else {
            return Err(about(format!(
                "{}. `flow-train list prompts` prints the prompts in their order",
                problems.join("; ")
            )));
        };
        let tokens = shape[1];
        let row = |number: usize| {
            (number * tokens..(number + 1) * tokens)
                .map(|row| row as i64)
                .collect()
        };
        let is_masked = lengths.iter().any(|(_, lengths)| lengths.is_some());
        let lengths = lengths.map(|(prompts, lengths)| lengths.unwrap_or_else(|| vec![tokens; prompts]));
        Ok(device.with_persistent_allocation(|| Self {
            numbers: numbers(dataset),
            lengths: is_masked.then(|| Arc::new(lengths.concat())),
            rows: Arc::new((0..=count).map(row).collect()),
            table_rc: device.tensor([text, negative].concat(), [(count + 1) * tokens, width.channels]),
            pooled_nd: pooled.and_then(|(channels, found)| {
                let ((_, pooled), (_, negative)) = found?;
                Some(device.tensor([pooled, negative].concat(), [count + 1, channels]))
            }),
        }))
    }

    /// Tokens of a text.
    pub fn tokens(&self) -> usize {
        self.rows.first().map_or(0, Vec::len)
    }

    /// The texts of prompts, one row for each, the empty one where `None`.
    ///
    /// # Panics
    /// If the data set has no such prompt.
    pub(crate) fn condition(&self, prompts: &[Option<&Prompt>], device: &ComputeDevice) -> Condition {
        let number = |prompt: &Option<&Prompt>| match prompt {
            Some(prompt) => *self.numbers.get(&prompt.text).expect("a prompt of the data set"),
            None => self.rows.len() - 1,
        };
        let numbers: Vec<usize> = prompts.iter().map(number).collect();
        let (batch, tokens, [_, channels]) = (numbers.len(), self.tokens(), self.table_rc.dims());
        let rows: Vec<i64> = numbers
            .iter()
            .flat_map(|number| self.rows[*number].iter().copied())
            .collect();
        let text = self
            .table_rc
            .clone()
            .select(0, device.int_tensor(rows, [batch * tokens]));
        let length = |lengths: &Arc<Vec<usize>>| numbers.iter().map(|number| lengths[*number]).collect();
        let text_lengths = self.lengths.as_ref().map(length);
        let numbers: Vec<i64> = numbers.into_iter().map(|number| number as i64).collect();
        let pooled = self.pooled_nd.as_ref().map(|pooled| {
            let rows = device.int_tensor(numbers, [batch]);
            pooled.clone().select(0, rows)
        });
        Condition {
            text: Some(text.reshape([batch, tokens, channels])),
            text_lengths,
            pooled,
            ..Condition::default()
        }
    }
}

/// What a file of encoded prompts holds.
struct File<'a>(Parsed<'a>);

impl File<'_> {
    /// Shape and values of a tensor, whose axes must be those given, as far as they are.
    fn take(&self, name: &str, wanted: &[Option<usize>]) -> Result<(Vec<usize>, Vec<f32>), String> {
        let tensors = &self.0.tensors;
        let Some(tensor) = tensors.iter().find(|tensor| tensor.name == name) else {
            let there: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            return Err(format!("it has no tensor `{name}`; it has: {}", there.join(", ")));
        };
        let fits = tensor.shape.len() == wanted.len()
            && (tensor.shape.iter().zip(wanted))
                .all(|(is, wanted)| wanted.is_none_or(|wanted| wanted == *is) && *is > 0);
        if !fits {
            let axis = |axis: &Option<usize>| axis.map_or("any".to_owned(), |size| size.to_string());
            let wanted: Vec<String> = wanted.iter().map(axis).collect();
            return Err(format!(
                "`{name}` is {:?}, and the model and the data set need [{}]",
                tensor.shape,
                wanted.join(", ")
            ));
        }
        let values = tensor
            .to_f32()
            .ok_or_else(|| format!("`{name}` is in {:?}; write it in f32, bf16 or f16", tensor.dtype))?;
        match values.iter().position(|value| !value.is_finite()) {
            Some(at) => Err(format!("value {at} of `{name}` is not finite")),
            None => Ok((tensor.shape.clone(), values)),
        }
    }

    /// How many tokens of each of its rows the mask `name` `[rows, tokens]` shows, none if there is no such mask.
    fn lengths(&self, name: &str, shape: [usize; 2]) -> Result<Option<Vec<usize>>, String> {
        let Some(mask) = self.0.tensors.iter().find(|tensor| tensor.name == name) else {
            return Ok(None);
        };
        if mask.shape != shape {
            return Err(format!(
                "`{name}` is {:?}, and its texts need {shape:?}",
                mask.shape
            ));
        }
        // 0 and false have no bit in any type.
        let values = mask.bytes.chunks_exact(mask.bytes.len() / (shape[0] * shape[1]));
        let shown: Vec<bool> = values.map(|value| value.iter().any(|byte| *byte != 0)).collect();
        let rows = shown.chunks(shape[1]).enumerate();
        let length = |(row, shown): (usize, &[bool])| {
            let length = shown.iter().take_while(|shown| **shown).count();
            if shown[length..].contains(&true) {
                return Err(format!(
                    "row {row} of `{name}` shows a token behind padding, and padding must be behind the text"
                ));
            }
            Ok(length)
        };
        rows.map(length).collect::<Result<_, _>>().map(Some)
    }

    /// What is wrong with the texts that the writer noted as `prompts`, a JSON list, if there are any.
    fn other_prompts(&self, dataset: &dyn Dataset) -> Option<String> {
        let noted: Vec<String> = match serde_json::from_str(self.0.metadata.get("prompts")?) {
            Ok(noted) => noted,
            Err(error) => {
                return Some(format!(
                    "its metadata `prompts` is no JSON list of texts: {error}"
                ));
            }
        };
        let prompts = dataset.prompts();
        if noted.len() != prompts.len() {
            return Some(format!(
                "its metadata `prompts` lists {} texts, and `{}` has {}",
                noted.len(),
                dataset.name(),
                prompts.len()
            ));
        }
        let prompts = prompts.iter().map(|prompt| &prompt.text);
        let mut pairs = noted.iter().zip(prompts).zip(0..);
        pairs.find_map(|((noted, prompt), number)| {
            let problem = || {
                format!(
                    "its prompt {number} is `{noted}`, that of `{}` `{prompt}`",
                    dataset.name()
                )
            };
            (noted != prompt).then(problem)
        })
    }
}
