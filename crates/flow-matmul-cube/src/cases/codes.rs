//! Products of codes that every backend is checked with, and rows that are quantised, against the definition of e4m3 in f64.

use super::data::{Both, Case, Random, code_value, decode, encode, nearest_code};
use super::problems::problems;
use crate::Element;
use crate::fp8::Quantised;
use crate::prepared::{Plan, Prepared};
use crate::problem::{Accumulation, Activation, Epilogue, Layout, Matmul, Storage};
use crate::tensors::Matrix;
use cubecl::prelude::*;

/// Calls with codes, in each size `[m, n, k]`: layers forward with every epilogue, and gradients of inputs, of which B alone is codes, or
/// both factors are.
pub fn problems_of_codes(accumulation: Accumulation, element: Element, sizes: &[[usize; 3]]) -> Vec<Matmul> {
    let forward = problems(Layout::Nt, element, sizes)
        .into_iter()
        .map(|call| Matmul {
            storage: Storage::E4m3(accumulation),
            ..call
        });
    let gradients = problems(Layout::Nn, element, sizes).into_iter().filter(|call| {
        use Epilogue::*;
        matches!(call.epilogue, Store | Add | TimesDerivative(Activation::GeluTanh))
    });
    let gradients = gradients.map(|call| Matmul {
        storage: Storage::E4m3B,
        ..call
    });
    // Of layers with adapters.
    let gradients_of_codes = sizes.iter().flat_map(|size| {
        let epilogues = [Epilogue::Add, Epilogue::TimesDerivative(Activation::GeluTanh)];
        epilogues.map(|epilogue| Matmul {
            rank: 32,
            epilogue,
            storage: Storage::E4m3(accumulation),
            ..Matmul::plain(Layout::Nt, *size, element)
        })
    });
    forward.chain(gradients).chain(gradients_of_codes).collect()
}

/// Sums of codes with a bias, as they are stored, kept beside the activation and only activated, by each of `plans`; says which of them have
/// other bits. Which plan a call gets depends on how many rows there are, and whether sums are kept on whether it is differentiated: so a
/// policy would not be the one that sampled.
pub fn other_bits(
    client: &Client,
    size: [usize; 3],
    element: Element,
    plans: impl Fn(&Matmul) -> Vec<Plan>,
) -> Option<String> {
    let activated = |keep_sum| Epilogue::Activate {
        activation: Activation::GeluTanh,
        keep_sum,
    };
    // Of the sums, and of what the activation makes of them.
    let mut first: [Option<(String, Vec<u8>)>; 2] = [None, None];
    for epilogue in [Epilogue::Store, activated(true), activated(false)] {
        let call = Matmul {
            bias: true,
            epilogue,
            storage: Storage::E4m3(Accumulation::Promoted),
            ..Matmul::plain(Layout::Nt, size, element)
        };
        for plan in plans(&call) {
            let name = format!("{} with {epilogue:?}", plan.name());
            let case = Case::new(client, call, 5);
            let ran = Prepared::with(client, call, plan).and_then(|prepared| prepared.run(&case.operands()));
            if let Err(error) = ran {
                return Some(format!("{name}: declined: {error}"));
            }
            let result = Some(case.d.bytes(client));
            let kept = case.other.as_ref().map(|other: &Both| other.bytes(client));
            let found = match epilogue {
                Epilogue::Store => [result, None],
                _ => [kept, result],
            };
            for (first, bytes) in first.iter_mut().zip(found) {
                match (&*first, bytes) {
                    (None, Some(bytes)) => *first = Some((name.clone(), bytes)),
                    (Some((other, expected)), Some(bytes)) if *expected != bytes => {
                        return Some(format!("{size:?}: {name} has other bits than {other}"));
                    }
                    _ => {}
                }
            }
        }
    }
    None
}

/// Rows of very different size: the first is zero, the third has a NaN.
fn rows([rows, columns]: [usize; 2], element: Element) -> (Vec<u8>, Vec<f64>) {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let value = |at: usize| match at / columns {
        0 => 0.0,
        2 if at % columns == columns / 2 => f32::NAN,
        row => random.value() * 10f32.powi(row as i32 % 7 - 3),
    };
    let bytes: Vec<u8> = (0..rows * columns)
        .map(value)
        .flat_map(|value| encode(value, element))
        .collect();
    let values = bytes.chunks_exact(element.bytes());
    let values = values.map(|one| decode(one, element)).collect();
    (bytes, values)
}

/// Quantises rows twice; says what is wrong. A device that divides to the last bit gives the nearest code always; one that does not may
/// give the other one of two that are all but equally near.
pub fn wrong_codes(client: &Client, shape: [usize; 2], element: Element) -> Option<String> {
    let (bytes, values) = rows(shape, element);
    let [_, columns] = shape;
    let x = Matrix::contiguous(client.create_from_slice(&bytes), shape);
    let read = |handle: &cubecl_runtime::server::Handle| {
        client
            .read_one(handle.clone())
            .expect("the device gives its memory back")
            .to_vec()
    };
    let pass = || {
        let made = Quantised::new(client, &x, element).map_err(|error| error.to_string())?;
        Ok::<_, String>((
            read(&made.codes.handle),
            read(&made.scales.handle),
            made.codes.stride,
        ))
    };
    let ((codes, scales, stride), again) = match (pass(), pass()) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(why), _) | (_, Err(why)) => return Some(why),
    };
    if (&codes, &scales) != (&again.0, &again.1) {
        return Some("two runs differ".into());
    }
    for (row, values) in values.chunks(columns).enumerate() {
        // `f64::max` leaves NaN out.
        let largest = values.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
        let scale = decode(&scales[4 * row..], Element::F32);
        let exact = (largest / 448.0).max(2f64.powi(-116));
        let is_short = (scale as f32).to_bits().trailing_zeros() >= 16;
        // A bf16 has seven bits behind its first one, so a step is 2^-7 of the power of two below; the quotient was an f32.
        let step = 2f64.powi(exact.log2().floor() as i32 - 7);
        let is_near = (scale - exact).abs() <= 0.5 * step + 1e-6 * exact;
        if !is_short || !is_near {
            return Some(format!(
                "the scale of row {row} is {scale:e}, not {exact:e} as a bf16"
            ));
        }
        let of_row = &codes[row * stride..(row + 1) * stride];
        if of_row[columns..].iter().any(|code| *code != 0) {
            return Some(format!("the gap behind row {row} is not zero"));
        }
        for (column, (value, code)) in values.iter().zip(of_row).enumerate() {
            let quotient = value / scale;
            let nearest = nearest_code(quotient);
            let distance = |code: u8| (code_value(code) - quotient).abs();
            let is_as_near = distance(*code) - distance(nearest) <= 1e-6 * quotient.abs();
            if *code != nearest && !is_as_near {
                return Some(format!(
                    "row {row} column {column}: {value:e} has code {code:02x}, not {nearest:02x}"
                ));
            }
        }
    }
    None
}

/// Quantises the columns of a matrix, and the rows of its transpose; says if codes or scales differ.
pub fn wrong_columns(client: &Client, shape: [usize; 2], element: Element) -> Option<String> {
    let ([height, width], size) = (shape, element.bytes());
    let (turned, _) = rows([width, height], element);
    let mut bytes = vec![0; turned.len()];
    for (place, value) in turned.chunks_exact(size).enumerate() {
        let (column, row) = (place / height, place % height);
        bytes[(row * width + column) * size..][..size].copy_from_slice(value);
    }
    let matrix = |bytes: &[u8], shape| Matrix::contiguous(client.create_from_slice(bytes), shape);
    let made = [
        Quantised::of_columns(client, &matrix(&bytes, shape), element),
        Quantised::new(client, &matrix(&turned, [width, height]), element),
    ];
    let [found, expected] = made.map(|made| {
        let made = made.map_err(|error| error.to_string())?;
        Ok::<_, String>([&made.codes.handle, &made.scales.handle].map(|handle| {
            let read = client.read_one(handle.clone());
            read.expect("the device gives its memory back").to_vec()
        }))
    });
    match (found, expected) {
        (Ok(found), Ok(expected)) => {
            let names = ["codes", "scales"].into_iter().zip(found.iter().zip(&expected));
            let mut wrong = names.filter(|(_, (found, expected))| found != expected);
            wrong
                .next()
                .map(|(name, _)| format!("the {name} of the columns are not those of the transpose's rows"))
        }
        (Err(why), _) | (_, Err(why)) => Some(why),
    }
}
