//! The order in which examples are shown, and which of them are a batch together.

use super::examples::Examples;
use flow_core::rng::{Purpose, Stream};

/// Examples of one bucket that are shown together.
pub(super) struct Places {
    /// Their bucket.
    pub bucket: usize,
    /// Of each where it stands among all that are shown, which addresses what is random about it, and its number.
    pub rows: Vec<(u64, u64)>,
}

/// The batches of a pretraining, one after the other.
///
/// Examples are gone through in rounds, each once in a round, in an order that is drawn anew for each. Each waits with those of its
/// bucket, and as soon as there are enough of them they are a batch: every batch is full, every example comes equally often, and what a
/// bucket has left over at the end of a round comes first in the next. With a single bucket, batches are consecutive examples.
pub(super) struct BatchOrder<'a> {
    dataset: &'a dyn Examples,
    stream: Stream,
    batch: usize,
    /// Of the next example.
    position: u64,
    /// The round, and the order of its examples.
    round: Option<(u64, Vec<usize>)>,
    /// Of each bucket.
    waiting: Vec<Vec<(u64, u64)>>,
}

impl<'a> BatchOrder<'a> {
    /// Batches of `batch` examples of `dataset`, which has some, in the order that `seed` draws.
    pub fn new(dataset: &'a dyn Examples, batch: usize, seed: u64) -> Self {
        Self {
            dataset,
            stream: Stream::new(seed, Purpose::PretrainOrder),
            batch: batch.max(1),
            position: 0,
            round: None,
            waiting: vec![Vec::new(); dataset.buckets()],
        }
    }

    /// The next batch.
    pub fn next_batch(&mut self) -> Places {
        loop {
            let position = self.position;
            self.position += 1;
            let (round, place) = (position / self.dataset.len(), position % self.dataset.len());
            let (dataset, stream) = (self.dataset, &self.stream);
            let known = self.round.take().filter(|(known, _)| *known == round);
            let (_, order) = self.round.insert(known.unwrap_or_else(|| {
                let order = stream.at(round, 0).permutation(dataset.len() as usize);
                (round, order)
            }));
            let index = order[place as usize] as u64;
            let bucket = dataset.bucket(index);
            let waiting = &mut self.waiting[bucket];
            waiting.push((position, index));
            if waiting.len() == self.batch {
                let rows = std::mem::take(waiting);
                return Places { bucket, rows };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::TrainError;
    use flow_data::Prompt;
    use std::collections::BTreeMap;

    /// Examples by the numbers of their buckets.
    struct Bucketed(Vec<usize>);

    impl Examples for Bucketed {
        fn len(&self) -> u64 {
            self.0.len() as u64
        }

        fn buckets(&self) -> usize {
            self.0.iter().max().map_or(1, |most| most + 1)
        }

        fn bucket(&self, index: u64) -> usize {
            self.0[index as usize]
        }

        fn example(&self, _: u64) -> Result<(Vec<f32>, Prompt), TrainError> {
            unreachable!("an order looks at no example")
        }

        fn noisy_prompt(&self, prompt: &Prompt, _: f32, _: u64, _: u64) -> Result<Prompt, TrainError> {
            Ok(prompt.clone())
        }
    }

    fn batches(of: &Bucketed, batch: usize, seed: u64, count: usize) -> Vec<Places> {
        let mut order = BatchOrder::new(of, batch, seed);
        (0..count).map(|_| order.next_batch()).collect()
    }

    #[test]
    fn one_bucket_is_gone_through_as_consecutive_places_of_the_rounds_orders() {
        let data = Bucketed(vec![0; 7]);
        let stream = Stream::new(5, Purpose::PretrainOrder);
        let found = batches(&data, 3, 5, 9);
        let found: Vec<(u64, u64)> = found.into_iter().flat_map(|places| places.rows).collect();
        let wanted = (0..27u64).map(|position| {
            let order = stream.at(position / 7, 0).permutation(7);
            (position, order[(position % 7) as usize] as u64)
        });
        assert_eq!(found, wanted.collect::<Vec<_>>());
    }

    #[test]
    fn batches_are_full_and_of_one_bucket_and_every_example_comes_equally_often() {
        // Five, three and one of a bucket, in batches of two: nothing divides.
        let buckets = vec![0, 1, 0, 0, 2, 1, 0, 1, 0];
        let data = Bucketed(buckets.clone());
        // 88 places of rounds of nine, and in each bucket at most one that waits.
        let found = batches(&data, 2, 8, 44);
        let mut shown: BTreeMap<u64, usize> = BTreeMap::new();
        let mut positions = Vec::new();
        for places in &found {
            assert_eq!(places.rows.len(), 2);
            for (position, index) in &places.rows {
                assert_eq!(buckets[*index as usize], places.bucket);
                *shown.entry(*index).or_default() += 1;
                positions.push(*position);
            }
        }
        let counts = || shown.values().copied();
        let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
        // The last round is under way, and one of a bucket may wait.
        assert!(shown.len() == 9 && most - least <= 2, "{shown:?}");
        let places = positions.len();
        positions.sort_unstable();
        positions.dedup();
        assert_eq!(positions.len(), places, "no two examples share what is random");
    }

    #[test]
    fn the_seed_decides_the_order_and_nothing_else_does() {
        let data = Bucketed((0..40).map(|index| index % 3).collect());
        let rows = |seed| -> Vec<_> {
            let found = batches(&data, 4, seed, 20);
            found
                .into_iter()
                .map(|places| (places.bucket, places.rows))
                .collect()
        };
        assert_eq!(rows(1), rows(1));
        assert_ne!(rows(1), rows(2));
        // Whoever goes on skips what was shown.
        let mut later = BatchOrder::new(&data, 4, 1);
        (0..11).for_each(|_| drop(later.next_batch()));
        assert_eq!(later.next_batch().rows, rows(1)[11].1);
    }
}
