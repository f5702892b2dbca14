//! Many values at once are the values one after another.

use flow_rng::{Purpose, Stream};

fn bits(values: impl IntoIterator<Item = f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn filling_has_the_bits_of_one_value_after_another_and_leaves_the_same_place() {
    let stream = Stream::new(0xF00D_0000_0001, Purpose::SdeNoise);
    for before in 0..7 {
        for words in 0..3 {
            for length in [0, 1, 2, 3, 63, 64, 65, 130, 1000, 12_288] {
                let begun = || {
                    let mut draws = stream.at(1 << 40 | 17, 5);
                    for _ in 0..words {
                        draws.next_u32();
                    }
                    for _ in 0..before {
                        draws.normal();
                    }
                    draws
                };
                let (mut at_once, mut one_by_one) = (begun(), begun());
                let mut found = vec![0.0; length];
                at_once.fill_normal(&mut found);
                let expected = (0..length).map(|_| one_by_one.normal() as f32);
                let about = format!("{length} values after {before} and {words} words");
                assert_eq!(bits(found), bits(expected), "{about}");
                assert_eq!(
                    at_once.normal().to_bits(),
                    one_by_one.normal().to_bits(),
                    "{about}: the next one"
                );
                assert_eq!(
                    at_once.next_u64(),
                    one_by_one.next_u64(),
                    "{about}: the words after it"
                );
            }
        }
    }
}
