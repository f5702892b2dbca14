//! A cache of prepared calls that keeps the most recently used.

use flow_core::cube::Client;
use std::sync::{Arc, Mutex, PoisonError};

/// Entries kept: more kinds of call than models have, and few enough to search. Masks that differ from batch to batch
/// would fill the device's memory otherwise.
const CAPACITY: usize = 64;

/// Values by key, the last `CAPACITY` of them.
#[derive(Debug)]
pub(super) struct LruCache<K, V>(Mutex<Vec<Entry<K, V>>>);

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: Arc<V>,
    /// Used while a graph was recorded; the graph reads the value for as long as it is replayed.
    recorded: bool,
}

impl<K, V> Default for LruCache<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq, V> LruCache<K, V> {
    /// The value of `key`, made by `make` if it is not kept. `client` launches what it is for.
    pub fn get_or_make<E>(
        &self,
        client: &Client,
        key: K,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Arc<V>, E> {
        self.get_or_make_for(client.is_capturing(), key, make)
    }

    fn get_or_make_for<E>(
        &self,
        recorded: bool,
        key: K,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Arc<V>, E> {
        // A panic while the lock was held left the list whole: entries move at once.
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entry = match entries.iter().position(|entry| entry.key == key) {
            Some(at) => entries.remove(at),
            None => Entry {
                key,
                value: Arc::new(make()?),
                recorded,
            },
        };
        entry.recorded |= recorded;
        let value = entry.value.clone();
        entries.push(entry);
        if entries.len() > CAPACITY
            && let Some(oldest) = entries.iter().position(|entry| !entry.recorded)
        {
            // Calls under way, and backward passes to come, hold what they need themselves.
            entries.remove(oldest);
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn get(cache: &LruCache<usize, usize>, key: usize, recorded: bool, made: &mut Vec<usize>) -> usize {
        let value = cache.get_or_make_for(recorded, key, || {
            made.push(key);
            Ok::<_, Infallible>(10 * key)
        });
        match value {
            Ok(value) => *value,
        }
    }

    #[test]
    fn calls_seen_lately_are_kept_and_those_of_long_ago_are_made_again() {
        let (cache, mut made) = (LruCache::default(), Vec::new());
        for key in 0..CAPACITY {
            assert_eq!(get(&cache, key, false, &mut made), 10 * key);
        }
        // The first is asked for once more, so the second is the oldest.
        get(&cache, 0, false, &mut made);
        get(&cache, CAPACITY, false, &mut made);
        assert_eq!(made.len(), CAPACITY + 1);
        get(&cache, 0, false, &mut made);
        assert_eq!(made.len(), CAPACITY + 1, "kept");
        get(&cache, 1, false, &mut made);
        assert_eq!(made.last(), Some(&1), "made again");
        assert_eq!(cache.0.lock().expect("no test panics here").len(), CAPACITY);
    }

    #[test]
    fn what_a_recorded_graph_reads_is_never_let_go() {
        let (cache, mut made) = (LruCache::default(), Vec::new());
        for key in 0..3 {
            get(&cache, key, true, &mut made);
        }
        for key in 3..5 * CAPACITY {
            get(&cache, key, false, &mut made);
        }
        let before = made.len();
        for key in 0..3 {
            get(&cache, key, false, &mut made);
        }
        assert_eq!(made.len(), before);
    }
}
