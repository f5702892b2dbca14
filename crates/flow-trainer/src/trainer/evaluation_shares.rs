//! An evaluation on several ranks: each samples and scores prompts of its own, and all learn of all.

use crate::error::TrainError;
use flow_data::{Image, ImageShape};
use flow_exchange::{Exchange, World};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// The consecutive batches of a rank, of all those that are given with the prompts in each. A prompt is of one rank, since a reward may look at
/// all of its images; so ranks may have more or fewer of them.
pub(super) fn own_batches(batches: &[Vec<usize>], world: World) -> Range<usize> {
    let mut spans: BTreeMap<usize, Range<usize>> = BTreeMap::new();
    for (index, prompts) in batches.iter().enumerate() {
        for prompt in prompts {
            spans.entry(*prompt).or_insert(index..index).end = index;
        }
    }
    // Whether no prompt has images on both sides of what stands before batch `at`.
    let is_between_prompts = |at: usize| !spans.values().any(|span| span.start < at && at <= span.end);
    let at = |rank: usize| {
        let even = rank * batches.len() / world.ranks;
        (0..=even).rev().find(|at| is_between_prompts(*at)).unwrap_or(0)
    };
    at(world.rank)..at(world.rank + 1)
}

/// What a rank found.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Share {
    /// Its images among all, in order.
    pub numbers: Vec<usize>,
    /// Per reward, one score for each of them.
    pub scores: Vec<Vec<f32>>,
    /// Images by their number among all.
    pub pictures: Vec<(usize, Image)>,
}

/// What stands before the pixels in a message. Scores are bits: JSON has no infinity.
#[derive(Serialize, Deserialize)]
struct Header {
    numbers: Vec<usize>,
    scores: Vec<Vec<u32>>,
    pictures: Vec<(usize, [usize; 3])>,
}

impl Share {
    /// The shares of all ranks put together, in order, of which this is the own one.
    pub(super) fn of_all(self, exchange: &dyn Exchange) -> Result<Self, TrainError> {
        if !exchange.world().is_several() {
            return Ok(self);
        }
        let all = exchange.gather(&self.to_message())?;
        let unreadable = |rank: usize| {
            TrainError::setting(format!("what rank {rank} found in an evaluation cannot be read"))
                .with_help("run the same build of flow-train on all ranks")
        };
        let mut shares = Vec::with_capacity(all.len());
        for (rank, message) in all.iter().enumerate() {
            let share = Self::from_message(message).ok_or_else(|| unreadable(rank))?;
            if share
                .scores
                .iter()
                .any(|scores| scores.len() != share.numbers.len())
            {
                return Err(unreadable(rank));
            }
            shares.push(share);
        }
        let mut numbered: Vec<(usize, usize, usize)> = Vec::new();
        for (rank, share) in shares.iter().enumerate() {
            let numbers = share.numbers.iter().enumerate();
            numbered.extend(numbers.map(|(place, number)| (*number, rank, place)));
        }
        numbered.sort_unstable();
        let scores = |reward: usize| {
            let score = |(_, rank, place): &(usize, usize, usize)| {
                let scores = shares[*rank]
                    .scores
                    .get(reward)
                    .ok_or_else(|| unreadable(*rank))?;
                Ok(scores[*place])
            };
            numbered
                .iter()
                .map(score)
                .collect::<Result<Vec<f32>, TrainError>>()
        };
        let scores = (0..self.scores.len())
            .map(scores)
            .collect::<Result<_, TrainError>>()?;
        let mut pictures: Vec<(usize, Image)> = shares.into_iter().flat_map(|share| share.pictures).collect();
        pictures.sort_by_key(|(number, _)| *number);
        Ok(Self {
            numbers: numbered.into_iter().map(|(number, ..)| number).collect(),
            scores,
            pictures,
        })
    }

    fn to_message(&self) -> Vec<u8> {
        let bits = |scores: &Vec<f32>| scores.iter().map(|score| score.to_bits()).collect();
        let header = Header {
            numbers: self.numbers.clone(),
            scores: self.scores.iter().map(bits).collect(),
            pictures: (self.pictures.iter())
                .map(|(number, image)| (*number, [image.channels, image.height, image.width]))
                .collect(),
        };
        // Numbers and lists of numbers: that always has a text.
        let header = serde_json::to_vec(&header).unwrap_or_default();
        let mut message = (header.len() as u64).to_le_bytes().to_vec();
        message.extend(header);
        for (_, image) in &self.pictures {
            message.extend(image.pixels_chw.iter().flat_map(|value| value.to_le_bytes()));
        }
        message
    }

    fn from_message(message: &[u8]) -> Option<Self> {
        let (length, rest) = message.split_first_chunk()?;
        let (header, mut pixels) =
            rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        let header: Header = serde_json::from_slice(header).ok()?;
        let mut pictures = Vec::with_capacity(header.pictures.len());
        for (number, [channels, height, width]) in header.pictures {
            let count = channels.checked_mul(height)?.checked_mul(width)?;
            let (own, more) = pixels.split_at_checked(count.checked_mul(4)?)?;
            pixels = more;
            let values = own.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
            let image = Image::new(
                ImageShape {
                    channels,
                    height,
                    width,
                },
                values.collect(),
            )
            .ok()?;
            pictures.push((number, image));
        }
        let scores = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect();
        Some(Self {
            numbers: header.numbers,
            scores: header.scores.into_iter().map(scores).collect(),
            pictures,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(rank: usize, ranks: usize) -> World {
        World {
            rank,
            ranks,
            ..World::ALONE
        }
    }

    #[test]
    fn every_batch_is_of_one_rank_and_a_prompt_too() {
        let contiguous = |images: usize, size: usize, of_prompt: usize| -> Vec<Vec<usize>> {
            let all: Vec<usize> = (0..images).map(|image| image / of_prompt).collect();
            all.chunks(size).map(<[usize]>::to_vec).collect()
        };
        // Two sizes: prompts 0 and 2 in one, 1 and 3 in the other.
        let sizes = vec![vec![0, 0, 0], vec![0, 2, 2], vec![1, 1, 3], vec![3, 3]];
        for batches in [
            contiguous(96, 8, 2),
            contiguous(40, 6, 4),
            contiguous(15, 4, 5),
            contiguous(8, 8, 8),
            sizes,
        ] {
            for ranks in 1..6 {
                let (mut next, mut of_earlier) = (0, Vec::new());
                for rank in 0..ranks {
                    let own = own_batches(&batches, world(rank, ranks));
                    assert_eq!(own.start, next);
                    next = own.end;
                    let prompts: Vec<usize> = batches[own].concat();
                    assert!(
                        prompts.iter().all(|prompt| !of_earlier.contains(prompt)),
                        "rank {rank} of {ranks}"
                    );
                    of_earlier.extend(prompts);
                }
                assert_eq!(next, batches.len(), "{ranks} ranks");
            }
        }
        assert_eq!(own_batches(&contiguous(96, 8, 2), world(1, 3)), 4..8);
    }

    #[test]
    fn scores_and_pixels_come_through_a_message_bit_by_bit_and_a_torn_one_is_none() {
        let shape = ImageShape {
            channels: 3,
            height: 1,
            width: 2,
        };
        let image = Image::new(shape, vec![0.1, -0.0, 1.0, f32::MIN_POSITIVE, 0.5, -1.0]).unwrap();
        let share = Share {
            numbers: vec![4, 7],
            scores: vec![vec![1.5, -0.25], vec![0.1, f32::MAX]],
            pictures: vec![(4, image)],
        };
        let message = share.to_message();
        assert_eq!(Share::from_message(&message), Some(share));
        for length in [0, 7, 8, 20, message.len() - 1] {
            assert_eq!(Share::from_message(&message[..length]), None, "{length} bytes");
        }
    }
}
