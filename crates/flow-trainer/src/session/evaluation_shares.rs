//! An evaluation on several ranks: each samples and scores prompts of its own, and all learn of all.

use crate::error::TrainError;
use flow_data::{Image, ImageShape};
use flow_exchange::{Exchange, World};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The consecutive batches of a rank, of `batches` of `size` images. They are whole prompts of `images_per_prompt` images, since a
/// reward may look at all of a prompt; where there are too few for that, later ranks have more of them, or the last one all.
pub(super) fn own_batches(
    batches: usize,
    (size, images_per_prompt): (usize, usize),
    world: World,
) -> Range<usize> {
    // As many batches as make whole prompts.
    let unit = images_per_prompt / greatest_common_divisor(size, images_per_prompt);
    let units = batches.div_ceil(unit);
    let at = |rank: usize| (rank * units / world.ranks * unit).min(batches);
    at(world.rank)..at(world.rank + 1)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => greatest_common_divisor(b, a % b),
    }
}

/// What a rank found.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Share {
    /// Per reward, one score for each of its images.
    pub scores: Vec<Vec<f32>>,
    /// Images by their number among all.
    pub pictures: Vec<(usize, Image)>,
}

/// What stands before the pixels in a message. Scores are bits: JSON has no infinity.
#[derive(Serialize, Deserialize)]
struct Header {
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
        let mut found = Self {
            scores: vec![Vec::new(); self.scores.len()],
            pictures: Vec::new(),
        };
        for (rank, message) in all.iter().enumerate() {
            let unreadable = || {
                TrainError::Setting(format!(
                    "what rank {rank} found in an evaluation cannot be read; run the same build of flow-train on all ranks"
                ))
            };
            let share = Self::from_message(message).ok_or_else(unreadable)?;
            for (all, own) in found.scores.iter_mut().zip(share.scores) {
                all.extend(own);
            }
            found.pictures.extend(share.pictures);
        }
        Ok(found)
    }

    fn to_message(&self) -> Vec<u8> {
        let bits = |scores: &Vec<f32>| scores.iter().map(|score| score.to_bits()).collect();
        let header = Header {
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
        let (header, mut pixels) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        let header: Header = serde_json::from_slice(header).ok()?;
        let mut pictures = Vec::with_capacity(header.pictures.len());
        for (number, [channels, height, width]) in header.pictures {
            let count = channels.checked_mul(height)?.checked_mul(width)?;
            let (own, more) = pixels.split_at_checked(count.checked_mul(4)?)?;
            pixels = more;
            let values = own.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
            let image = Image::new(ImageShape { channels, height, width }, values.collect()).ok()?;
            pictures.push((number, image));
        }
        let scores = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect();
        Some(Self {
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
    fn every_batch_is_of_one_rank_and_a_rank_has_whole_prompts() {
        for (batches, size, images_per_prompt) in [(12, 8, 2), (7, 6, 4), (9, 4, 6), (1, 8, 3), (5, 3, 32)] {
            for ranks in 1..6 {
                let mut next = 0;
                for rank in 0..ranks {
                    let own = own_batches(batches, (size, images_per_prompt), world(rank, ranks));
                    assert_eq!(own.start, next);
                    next = own.end;
                    let is_whole = |batch: usize| (batch * size).is_multiple_of(images_per_prompt);
                    assert!(is_whole(own.start) || own.start == batches, "{own:?} of {batches}");
                }
                assert_eq!(next, batches, "{ranks} ranks");
            }
        }
        // Two ranks have six prompts of two images each.
        assert_eq!(own_batches(3, (8, 2), world(0, 2)), 0..1);
        assert_eq!(own_batches(3, (8, 2), world(1, 2)), 1..3);
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
