//! What was made ready for calls that were seen lately.

use flow_core::cube::Client;
use std::sync::{Arc, Mutex, PoisonError};

/// How many are kept: more kinds of call than models have, and few enough to search. Masks that differ from batch to batch
/// would fill the device's memory otherwise.
const MOST: usize = 64;

/// Values by what they were made for, the last `MOST` of them.
#[derive(Debug)]
pub(super) struct Recent<K, V>(Mutex<Vec<Entry<K, V>>>);

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: Arc<V>,
    /// Asked for while a graph was recorded, which reads what is on the device for as long as it is replayed.
    recorded: bool,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq, V> Recent<K, V> {
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
        if entries.len() > MOST
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

    fn get(recent: &Recent<usize, usize>, key: usize, recorded: bool, made: &mut Vec<usize>) -> usize {
        let value = recent.get_or_make_for(recorded, key, || {
            made.push(key);
            Ok::<_, Infallible>(10 * key)
        });
        match value {
            Ok(value) => *value,
        }
    }

    #[test]
    fn calls_seen_lately_are_kept_and_those_of_long_ago_are_made_again() {
        let (recent, mut made) = (Recent::default(), Vec::new());
        for key in 0..MOST {
            assert_eq!(get(&recent, key, false, &mut made), 10 * key);
        }
        // The first is asked for once more, so the second is the oldest.
        get(&recent, 0, false, &mut made);
        get(&recent, MOST, false, &mut made);
        assert_eq!(made.len(), MOST + 1);
        get(&recent, 0, false, &mut made);
        assert_eq!(made.len(), MOST + 1, "kept");
        get(&recent, 1, false, &mut made);
        assert_eq!(made.last(), Some(&1), "made again");
        assert_eq!(recent.0.lock().expect("no test panics here").len(), MOST);
    }

    #[test]
    fn what_a_recorded_graph_reads_is_never_let_go() {
        let (recent, mut made) = (Recent::default(), Vec::new());
        for key in 0..3 {
            get(&recent, key, true, &mut made);
        }
        for key in 3..5 * MOST {
            get(&recent, key, false, &mut made);
        }
        let before = made.len();
        for key in 0..3 {
            get(&recent, key, false, &mut made);
        }
        assert_eq!(made.len(), before);
    }
}
