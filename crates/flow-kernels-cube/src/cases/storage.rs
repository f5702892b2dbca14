//! Cases of weights in 16 bits: halves of an f32, and results rounded at random.

use super::checker::{Checker, Values};
use crate::adamw::{AdamW, AdamWParam, MasterWeight, Rounding};
use crate::split_f32::{SplitF32, join};
use crate::{Buffer, Element};
use flow_rng::{Purpose, Stream};

/// Weights of these lengths go through steps together: several widths, one longer than a block, one that is empty.
const LENGTHS: [usize; 6] = [4096, 7, 0, 50_002, 1, 1000];
/// The seed of random rounding.
const SEED: u64 = 0x1234_5678_9ABC_DEF0;
/// The stream of the first weight; the others have the next ones.
const FIRST_STREAM: u32 = 5;

pub(super) fn check(checker: &mut Checker<'_>) {
    // Devices without bf16 have no 16-bit integers either.
    if checker.element() != Element::Bf16 {
        return;
    }
    halves(checker);
    not_a_number(checker);
    for moments in [Element::F32, Element::Bf16] {
        steps(checker, moments);
    }
}

/// Every kind of number, and those between two of bf16.
fn values(length: usize) -> Vec<f64> {
    let mut draws = Stream::new(3, Purpose::Test).at(length as u64, 0);
    let value = |at: usize| {
        let bits = draws.next_u32();
        let bits = match at % 4 {
            0 => (bits & 0xFFFF_0000) | 0x8000,
            1 => bits & 0x807F_FFFF,
            2 => (bits & 0xFFFF_0000) | 0x7FFF,
            _ => bits,
        };
        // The largest bf16 is the last that has a number above it.
        let bits = if bits & 0x7FFF_FFFF >= 0x7F7F_8000 {
            bits & 0x8000_FFFF
        } else {
            bits
        };
        f64::from(f32::from_bits(bits))
    };
    (0..length).map(value).collect()
}

/// A NaN is one in both of its forms, the largest of its kind too, which is what NVIDIA's arithmetic gives.
fn not_a_number(checker: &mut Checker<'_>) {
    let client = checker.client().clone();
    let values = [0x7FF8_0000_0000_0000, 0x7FFF_FFFF_FFFF_FFFF, u64::MAX].map(f64::from_bits);
    let value = Buffer::upload(&client, &values, Element::F32);
    let [high, low] = [(); 2].map(|()| checker.room(values.len(), Element::Bf16));
    let back = Buffer::upload(&client, &[0.0; 3], Element::F32);
    let halves = SplitF32 {
        high: &high,
        low: &low,
    };
    let done = halves.split(&client, &value);
    checker.accept("split of NaN", done);
    let done = join(&client, &[(halves, &back)]);
    checker.accept("join of NaN", done);
    for (what, of) in [("high half", &high), ("halves together", &back)] {
        let found = checker.download(of);
        if !found.iter().all(|value| value.is_nan()) {
            checker.fail(format!("{what} of NaN: {found:?}"));
        }
    }
}

/// The nearest bf16, of two equally near ones the one farther from zero.
fn nearest(value: f64) -> f64 {
    let bits = (value as f32).to_bits();
    let down = f32::from_bits(bits & 0xFFFF_0000);
    let up = f32::from_bits((bits & 0xFFFF_0000) + 0x1_0000);
    let (down, up) = (f64::from(down), f64::from(up));
    if (value - down).abs() < (up - value).abs() {
        down
    } else {
        up
    }
}

fn halves(checker: &mut Checker<'_>) {
    let client = checker.client().clone();
    for length in LENGTHS {
        let values = values(length);
        let value = Buffer::upload(&client, &values, Element::F32);
        let [high, low] = [(); 2].map(|()| checker.room(length, Element::Bf16));
        let back = checker.room(length, Element::F32);
        let halves = SplitF32 {
            high: &high,
            low: &low,
        };
        let done = halves.split(&client, &value);
        checker.accept("split", done);
        let done = join(&client, &[(halves, &back)]);
        checker.accept("join", done);
        let want: Vec<f64> = values.iter().map(|value| nearest(*value)).collect();
        let (high, back) = (checker.download(&high), checker.download(&back));
        checker.same(&format!("high halves of {length}: the nearest"), &high, &want);
        checker.same(&format!("halves of {length}, joined"), &back, &values);
    }
}

/// A weight in f32, the same in halves and in bf16, each with its own moments.
struct Case {
    gradient: Buffer,
    /// Weight, first and second moment.
    whole: [Buffer; 3],
    halves: [Buffer; 3],
    low: Buffer,
    narrow: [Buffer; 3],
    /// What bf16 becomes before it is rounded.
    wide: [Buffer; 3],
}

impl Case {
    fn new(checker: &mut Checker<'_>, length: usize, moments: Element) -> Self {
        let client = checker.client().clone();
        let weight = checker.draw(length, Element::F32, 1.0, 0.0);
        let short = checker.draw(length, Element::Bf16, 1.0, 0.0);
        let gradient = checker.draw(length, Element::Bf16, 1.0, 0.0);
        let first = checker.draw(length, moments, 0.1, 0.0);
        let second = checker.draw(length, moments, 0.1, 0.0);
        let second = Values {
            values: moments.decode(&moments.encode(&second.values.iter().map(|x| x * x).collect::<Vec<_>>())),
            ..second
        };
        let with = |weight: Buffer| [weight, checker.upload(&first), checker.upload(&second)];
        let whole = with(Buffer::upload(&client, &weight.values, Element::F32));
        let high = with(Buffer::empty(&client, length, Element::Bf16));
        let narrow = with(Buffer::upload(&client, &short.values, Element::Bf16));
        let wide = with(Buffer::upload(&client, &short.values, Element::F32));
        let low = checker.room(length, Element::Bf16);
        let halves = SplitF32 {
            high: &high[0],
            low: &low,
        };
        let done = halves.split(&client, &whole[0]);
        checker.accept("split", done);
        Self {
            gradient: checker.upload(&gradient),
            whole,
            halves: high,
            low,
            narrow,
            wide,
        }
    }

    fn in_halves(&self) -> SplitF32<'_> {
        SplitF32 {
            high: &self.halves[0],
            low: &self.low,
        }
    }

    fn updated<'a>(
        &'a self,
        [weight, first, second]: &'a [Buffer; 3],
        beside: MasterWeight<'a>,
    ) -> AdamWParam<'a> {
        AdamWParam {
            weight,
            gradient: &self.gradient,
            first,
            second,
            beside,
            weight_decay: 0.1,
        }
    }
}

/// Where the numbers of a weight begin in its stream: the first weight is whole, the others are parts.
fn first_number(stream: u32) -> usize {
    4 * (stream - FIRST_STREAM) as usize
}

/// Steps in halves have the bits of steps in f32; steps in bf16 have those of f32, rounded by the numbers they name.
fn steps(checker: &mut Checker<'_>, moments: Element) {
    let client = checker.client().clone();
    let varying = Buffer::upload(&client, &[1e-2, 0.1, 0.001, 0.5], Element::F32);
    let cases: Vec<Case> = LENGTHS.map(|length| Case::new(checker, length, moments)).into();
    for step in [1, 2, 700] {
        let adamw = AdamW {
            betas: (0.9, 0.999),
            epsilon: 1e-8,
            varying: &varying,
            rounding: Rounding {
                seed: SEED,
                purpose: Purpose::Rounding as u8,
                step,
            },
        };
        let streams = FIRST_STREAM..;
        let all = cases.iter().zip(streams.clone()).flat_map(|(case, stream)| {
            [
                case.updated(&case.whole, MasterWeight::Nothing),
                case.updated(&case.halves, MasterWeight::Low(&case.low)),
                case.updated(
                    &case.narrow,
                    MasterWeight::Stream {
                        stream,
                        first: first_number(stream),
                    },
                ),
                case.updated(&case.wide, MasterWeight::Nothing),
            ]
        });
        let done = adamw.update(&client, &all.collect::<Vec<_>>());
        checker.accept("AdamW in 16 bits", done);
        let joined = LENGTHS.map(|length| checker.room(length, Element::F32));
        let pairs = cases
            .iter()
            .zip(&joined)
            .map(|(case, joined)| (case.in_halves(), joined));
        let done = join(&client, &pairs.collect::<Vec<_>>());
        checker.accept("join", done);
        for (((case, length), stream), joined) in cases.iter().zip(LENGTHS).zip(streams).zip(&joined) {
            let name = format!("AdamW of {length}, moments in {}, step {step}", moments.name());
            let (joined, whole) = (checker.download(joined), checker.download(&case.whole[0]));
            checker.same(&format!("{name}: halves"), &joined, &whole);
            for at in [1, 2] {
                let [whole, halves, narrow, wide] =
                    [&case.whole, &case.halves, &case.narrow, &case.wide].map(|of| checker.download(&of[at]));
                checker.same(&format!("{name}: moment {at} of halves"), &halves, &whole);
                checker.same(&format!("{name}: moment {at} of bf16"), &narrow, &wide);
            }
            let draws = Stream::new(SEED, Purpose::Rounding).at(u64::from(stream), step);
            let mut draws = draws.from_number(first_number(stream) as u64);
            let rounded = checker.download(&case.wide[0]).into_iter().map(|value| {
                let noise = draws.next_u32() >> 16;
                f64::from(f32::from_bits(((value as f32).to_bits() + noise) & 0xFFFF_0000))
            });
            let rounded: Vec<f64> = rounded.collect();
            let narrow = checker.download(&case.narrow[0]);
            checker.same(&format!("{name}: bf16"), &narrow, &rounded);
            // The next step starts from the same weights again.
            let again = Buffer::upload(&client, &rounded, Element::F32);
            crate::cast::cast(&client, &again, &case.wide[0], 1.0, true).expect("as long as before");
        }
    }
}
