//! What is uploaded once and used for as long as a program runs.

use cubecl::prelude::*;
use cubecl_runtime::server::Handle;

/// `words` on the device, apart from the pools that calls take memory from and give it back to: a schedule, say, which is made in the
/// middle of the first call that needs it. In a page of a pool it would stand between tensors for good, so that the page could neither
/// serve a tensor as large as itself again nor go back to the device.
///
/// What lasts is kept by its size. So that memory which was given back serves others, zeros follow up to a power of two.
pub fn lasting_words(client: &Client, words: &[u32]) -> Handle {
    let mut filled = words.to_vec();
    filled.resize(words.len().next_power_of_two(), 0);
    client.memory_persistent_allocation(filled, |words| client.create_from_slice(u32::as_bytes(&words)))
}

#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use super::lasting_words;
    use cubecl::MemoryScope;
    use cubecl::prelude::*;

    /// In use and taken by what lasts.
    fn bytes_that_last(client: &Client) -> [u64; 2] {
        let streams = client.memory_report(MemoryScope::CurrentStream).streams;
        let of = |count: fn(&cubecl::MemoryUsage) -> u64| {
            let pools = streams.iter().map(|stream| &stream.pools.persistent);
            pools.map(|pool| count(&pool.usage)).sum::<u64>()
        };
        [of(|usage| usage.bytes_in_use), of(|usage| usage.bytes_reserved)]
    }

    #[test]
    fn words_that_last_stand_apart_from_the_pools_and_serve_others_of_about_their_number() {
        let client = crate::vulkan::client().unwrap_or_else(|none| panic!("{none}"));
        let [before, _] = bytes_that_last(&client);
        let words: Vec<u32> = (0..33_001).collect();
        let passing = client.empty(4 * words.len());
        let handle = lasting_words(&client, &words);
        let bytes = client.read_one(handle.clone()).expect("the device answers");
        assert_eq!(u32::from_bytes(&bytes)[..words.len()], words);
        let [in_use, taken] = bytes_that_last(&client);
        assert_eq!(in_use - before, 4 << 16);
        drop((handle, passing));
        assert_eq!(bytes_that_last(&client), [before, taken]);
        let _others = lasting_words(&client, &words[1..]);
        assert_eq!(bytes_that_last(&client), [in_use, taken]);
    }
}
