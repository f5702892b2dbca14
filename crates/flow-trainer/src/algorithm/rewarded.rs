//! What an algorithm makes of the rewards of an iteration by itself, in the place of `[advantage]`, and what it remembers of them.

use crate::advantage::RewardColumn;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The rewards of all images of an iteration, of all ranks, in the order of the rollout: what is made of them is the same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct RewardedRows<'a> {
    /// Every reward, with one value per image.
    pub rewards: &'a [RewardColumn<'a>],
    /// The group of each image: images with the same number are compared with one another.
    pub groups: &'a [u64],
}

impl RewardedRows<'_> {
    /// The weighted sum of the rewards of each image.
    pub fn total(&self) -> Vec<f64> {
        let of_image = |image: usize| -> f64 {
            let rewards = self.rewards.iter();
            rewards
                .map(|reward| reward.weight * f64::from(reward.values[image]))
                .sum()
        };
        (0..self.groups.len()).map(of_image).collect()
    }

    /// The values of the reward with a name; none if there is no such reward.
    pub fn values(&self, name: &str) -> Option<Vec<f64>> {
        let reward = self.rewards.iter().find(|reward| reward.name == name)?;
        Some(reward.values.iter().map(|value| f64::from(*value)).collect())
    }
}

/// Advantages and gates of the images of an iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct RowWeights {
    /// Its advantage, not clamped.
    pub advantages: Vec<f32>,
    /// How much the loss pulls each image towards the reference, with a mean of 1 over all images, or 0 for every one:
    /// [`LossContext::gates`](super::LossContext::gates).
    pub gates: Vec<f32>,
    /// What to log, by name.
    pub metrics: Vec<(&'static str, f64)>,
}

/// Numbers that an algorithm keeps from one iteration to the next, by name. They are part of every checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory(BTreeMap<String, Vec<f64>>);

impl Memory {
    /// The numbers kept under a name; none before anything was.
    pub fn get(&self, name: &str) -> &[f64] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Keeps numbers under a name, in the place of those that were.
    pub fn set(&mut self, name: &str, numbers: Vec<f64>) {
        self.0.insert(name.to_owned(), numbers);
    }
}
